"""Notices as alerts of Alertmanager's API, version 2. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from understudy_controlplane.clock import moment
from understudy_controlplane.config import Config, Importance
from understudy_controlplane.fleet.notice import Notice, Stage
from understudy_controlplane.notify.plain import plain, plain_lines

LIVES_SECONDS = 900.0
"""An alert that is not sent again for this time ends by itself: longer than an upgrade of the control plane."""

REPORTED_SECONDS = 3600.0
"""How long an alert stands that has no end of its own."""

LINES_MAX = 30


def alerts(notices: Iterable[Notice], config: Config, least: Importance, now: float) -> list[dict[str, object]]:
    """Alerts of all that is open, and of what ended lately: an end that did not arrive comes again."""
    chosen = {one.id: one for one in notices if one.title and not one.user and one.importance.reaches(least)}
    ends = {number: _ends_at(one, now) for number, one in chosen.items()}
    return [_alert(one, config, ends[number]) for number, one in chosen.items() if ends[number] > now - LIVES_SECONDS]


def _ends_at(one: Notice, now: float) -> float:
    if one.stage is Stage.REPORTED:
        return one.at + REPORTED_SECONDS
    return one.over_at if one.over_at is not None else now + LIVES_SECONDS


def _alert(one: Notice, config: Config, ends_at: float) -> dict[str, object]:
    lines = plain_lines(one.text, LINES_MAX)
    if one.needs and one.needs != one.text:
        lines.append(f"A person is needed: {plain(one.needs)}")
    link = config.notify.dashboard and one.page
    return {
        "labels": {
            "alertname": f"Understudy{one.source.value.capitalize()}",
            "cluster": config.cluster,
            "key": one.key,
            "severity": one.importance.value,
            "subject": plain(one.about[0]) if one.about else "fleet",
        },
        "annotations": {"summary": plain(one.title), "description": "\n".join(lines)},
        "startsAt": _time(one.at),
        "endsAt": _time(ends_at),
        **({"generatorURL": f"{config.notify.dashboard}/{one.page}"} if link else {}),
    }


def _time(at: float) -> str:
    return moment(at).isoformat(timespec="milliseconds")
