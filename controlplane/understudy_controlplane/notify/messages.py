"""Groups notices into messages: when each is due, and what it shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from understudy_controlplane.clock import moment
from understudy_controlplane.config import OWNERS, Importance, Notify, ReceiverKind
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.notice import ENDED, Message, Notice, NoticeSource, Stage
from understudy_controlplane.notify.plain import plain, plain_lines

LISTED_MAX = 20
"""Notices that a message lists; of the others it says how many there are."""

LINES_OF_ONE, LINES_OF_MANY = 30, 2

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 10.0, 300.0
"""Waits between two attempts to send the same version."""

TRIES_MAX = 290
"""A day."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A version of a message. `status`: of the notice that is worst off."""

    title: str
    text: str
    status: Stage
    importance: Importance


def addressees(notice: Notice, policy: Notify) -> list[str]:
    """Receivers that get messages from the queue. Alertmanager is not among them: it is sent what is so."""
    if not notice.title:
        return []  # it is part of another one
    if notice.user:
        return [OWNERS] if policy.owners_url_of(notice.user) is not None else []
    if notice.source is NoticeSource.REPORT:
        return [name for name, one in policy.receivers.items() if one.weekly_report]
    return [
        name
        for name, one in policy.receivers.items()
        if one.kind is not ReceiverKind.ALERTMANAGER and notice.importance.reaches(one.least)
    ]


def joined(unsent: Message | None, receiver: str, notice: Notice, policy: Notify, now: float) -> Message:
    """The message that this notice goes out with: one that the receiver has not taken yet, or a new one."""
    message = unsent or Message(receiver, notice.user, (), now, now + policy.group_seconds, mail=notice.mail)
    return replace(message, notices=(*dict.fromkeys((*message.notices, notice.id)),))


def followed(message: Message, notices: Sequence[Notice], policy: Notify, now: float) -> Message:
    """Message with a new version if there is news. One that waits for its first time shows the newest state then."""
    to_owner = message.receiver == OWNERS and policy.owners_url_of(message.user) is not None
    if message.receiver not in policy.receivers and not to_owner:
        return replace(message, closed=True, error="its receiver is not in the configuration any more")
    news, importance = _news(notices), max((one.importance for one in notices), key=[*Importance].index)
    if news != message.shown:
        # A receiver that is away, or has had no version yet, gets the newest state when the message is due.
        is_due_later = message.is_new or message.is_waiting
        message = replace(
            message,
            shown=news,
            importance=importance,
            revision=message.revision + 1,
            due_at=message.due_at if is_due_later else now + policy.group_seconds,
            tries=message.tries if message.is_waiting else 0,
        )
    if message.accepted and not message.is_waiting and all(one.stage in ENDED for one in notices):
        return replace(message, closed=True)
    return message


def _news(notices: Sequence[Notice]) -> str:
    """What makes a new version. Of many notices only the whole: a storm that ends one by one is no second storm."""
    if len(notices) == 1:
        return f"{notices[0].id} {notices[0].importance.value} {notices[0].stage.value}"
    importance = max((one.importance for one in notices), key=[*Importance].index)
    ended = all(one.stage in ENDED for one in notices)
    return f"{len(notices)} notices from {notices[0].id} {importance.value} {'over' if ended else 'open'}"


def attempted(message: Message, now: float) -> Message:
    """Written before it is sent: after a crash it is not sent again at once."""
    wait = min(FIRST_WAIT_SECONDS * 2**message.tries, LONGEST_WAIT_SECONDS)
    return replace(message, tries=message.tries + 1, due_at=now + wait)


def answered(message: Message, revision: int, title: str, error: str, now: float) -> Message:
    """After an attempt to send this version."""
    if error:
        closed = message.tries >= TRIES_MAX
        return replace(message, error=error, closed=message.closed or closed)
    more = message.revision > revision
    return replace(
        message,
        accepted=revision,
        title=message.title or title,
        accepted_at=now,
        error="",
        tries=0 if more else message.tries,
        due_at=now if more else message.due_at,
    )


def shown(message: Message, notices: Sequence[Notice], cluster: str, policy: Notify) -> Shown:
    ordered = sorted(notices, key=lambda one: (-[*Importance].index(one.importance), one.at))
    importance = ordered[0].importance
    status = _status(ordered)
    title = message.title or plain(f"Understudy {cluster}: {_title(ordered)}")
    if len(ordered) == 1:
        lines = [_state(ordered[0], policy), *_lines(ordered[0], LINES_OF_ONE), *_link(ordered[0], policy)]
    else:
        listed = ordered[:LISTED_MAX]
        lines = [_counts(ordered)]
        for one in listed:
            lines += [
                "",
                f"{_state(one, policy)}: {plain(one.title)}",
                *_lines(one, LINES_OF_MANY),
                *_link(one, policy),
            ]
        if len(ordered) > len(listed):
            lines += ["", f"and {len(ordered) - len(listed)} more" + _all_of_them(policy)]
    return Shown(title, "\n".join(lines), status, importance)


def _status(notices: Sequence[Notice]) -> Stage:
    stages = {one.stage for one in notices}
    worst = (Stage.FAILED, Stage.OPEN, Stage.RECOVERED, Stage.OVER, Stage.REPORTED)
    return next(one for one in worst if one in stages)


def _title(notices: Sequence[Notice]) -> str:
    return notices[0].title if len(notices) == 1 else f"{len(notices)} notices, the first: {notices[0].title}"


def _counts(notices: Sequence[Notice]) -> str:
    pages = sum(one.importance is Importance.PAGE and one.stage not in (Stage.OVER,) for one in notices)
    over = sum(one.stage is Stage.OVER for one in notices)
    needs = f", {pages} of them need a person" if pages else ""
    return f"{counted(len(notices), 'notice')}{needs}{f', {over} are over' if over else ''}:"


def _state(one: Notice, policy: Notify) -> str:
    at = moment(one.at, ZoneInfo(policy.time_zone)).strftime("%Y-%m-%d %H:%M:%S %Z")
    words = {Stage.OPEN: "open", Stage.RECOVERED: "jobs run again", Stage.FAILED: "a recovery failed"}
    state = "over" if one.stage is Stage.OVER else words.get(one.stage, "")
    person = "a person is needed" if one.importance is Importance.PAGE and one.stage is not Stage.OVER else ""
    return ", ".join(filter(None, (at, person, state)))


def _lines(one: Notice, at_most: int) -> list[str]:
    lines = plain_lines(one.text, at_most)
    if one.needs and one.needs != one.text and one.stage is not Stage.OVER:
        lines.append(f"A person is needed: {plain(one.needs)}")
    return lines


def _link(one: Notice, policy: Notify) -> list[str]:
    return [f"{policy.dashboard}/{one.page}"] if policy.dashboard and one.page and not one.user else []


def _all_of_them(policy: Notify) -> str:
    return f": {policy.dashboard}/incidents" if policy.dashboard else ": `understudy incident list`"


def as_json(message: Message, version: Shown, notices: Sequence[Notice], cluster: str) -> Mapping[str, object]:
    """The body of a webhook."""
    return {
        "version": 1,
        "id": f"{cluster}-{message.id}",
        "revision": message.revision,
        "cluster": cluster,
        "status": version.status.value,
        "importance": version.importance.value,
        "title": version.title,
        "text": version.text,
        "notices": [
            {
                "key": one.key,
                "status": one.stage.value,
                "importance": one.importance.value,
                "title": plain(one.title),
                "text": "\n".join(_lines(one, LINES_OF_ONE)),
                "about": [plain(name) for name in one.about[:LISTED_MAX]],
                "at": one.at,
                "over_at": one.over_at,
            }
            for one in notices[:LISTED_MAX]
        ],
        "notices_total": len(notices),
    }
