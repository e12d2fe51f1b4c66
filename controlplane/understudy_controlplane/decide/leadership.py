"""When a control plane on PostgreSQL takes the lead, and when it may change something in Slurm.

Two of them may not act at the same time, also where one was frozen in the middle of a call and does not know that time
has passed. The leader renews its lease; a standby leads once it has seen no renewal for as long as the lease lasts, or
at once where the leader's session has ended. Then it waits with its first change in Slurm until the last call that the
leader can have begun is over.

No two machines' clocks are compared: each measures durations by its own CLOCK_BOOTTIME, which also counts the time for
which the machine was suspended. The leader counts from before a renewal, the standby from when it first saw it, which
is later: so the lease is over for the leader first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.fleet.counted import listed
from understudy_controlplane.fleet.holder import Holder, Leader, OtherLeader, Standby
from understudy_wire.leader import HeardLeader

RENEWAL_SECONDS = 0.5
LEASE_SECONDS = 2.0
"""Three renewals may be lost."""

MISSED_SECONDS = 2 * RENEWAL_SECONDS
"""A standby waits for a renewal during this time where the leader's session has ended: a leader that has lost its
session alone renews through a new one, and so does another standby that has just ended that session.
"""

CALL_SECONDS = 2.0
"""Longest call that changes something in Slurm: what a call may have begun within the lease ends after it. Slurm
answers most within milliseconds, and the outcome of one that was ended is read back.
"""

LOOP_SECONDS = 60.0
"""A loop that stands still for longer gives the lead up, as systemd ends it then (`WatchdogSec`). Not earlier: it waits
for a slow slurmctld, and a standby would wait for the same one.
"""


UNHEARD_SECONDS = 6.0
"""A leader that hears no agent for this time passes the lead on to a standby that reaches slurmctld. Nothing proves
that the standby would hear them, and an upgrade restarts all agents at once: each is back within a few seconds.
"""

UNANSWERED_SECONDS = 2.0
"""A leader that slurmctld does not answer for this time passes the lead on to a standby that it goes on answering."""

ANSWERS_MIN = 3
"""Answers of slurmctld to a standby that the leader sees in as many looks, while its own questions are not answered.
The first may be older than it looks, where the standby stood still.
"""

UNREAD_SECONDS = 30.0
"""The same for a leader that slurmctld answers, and that cannot use what it answers: each reading of Slurm fails."""

SETTLED_SECONDS = 1200.0
"""A leader keeps the lead for this time at least, unless it loses it: where the next one fares no better, it stays. A
new leader also measures from its start how long a gang stands still: the default of `hang.seconds_min` is half of this.
"""

AGENTS_MIN = 3
"""The silence of fewer agents is their own: they may be restarted at once."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a standby knows of the leader."""

    holder: Holder | None  # None: there was none yet
    at: float  # when it was first seen as it is now


@dataclass(frozen=True, slots=True)
class Lead:
    """Take the lead. `calls_from`: when no call of the one before can be under way any more."""

    calls_from: float


@dataclass(frozen=True, slots=True)
class StandBy:
    pass


def look(before: Sighting | None, holder: Holder | None, now: float) -> Sighting:
    return before if before is not None and before.holder == holder else Sighting(holder, now)


def stance(seen: Sighting, now: float, *, session_ended: bool) -> Lead | StandBy:
    """`session_ended`: the leader's session with the database, though perhaps not the leader itself."""
    if seen.holder is None or (seen.holder.renewed_at is None and session_ended):
        return Lead(now) if session_ended else StandBy()
    if now - seen.at >= (MISSED_SECONDS if session_ended else LEASE_SECONDS):
        return Lead(seen.at + LEASE_SECONDS + CALL_SECONDS)
    return StandBy()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """What a leader knows of its questions to slurmctld since it was last answered."""

    since: float
    """The begin of the first one."""
    missed_at: float
    """The begin of the newest one that has failed, or waits for longer than an answer takes; -inf: none has yet."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a leader has seen of the answers to one standby since its own questions were not answered."""

    number: int
    count: int = 0
    since: float = 0.0
    """When it saw the first one that was new."""


class CutFromSlurm:
    """The leader finds that slurmctld answers a standby alone. Where it is restarted, both learn that it is away, and
    that it is back, at moments of their own. So the standby has to be answered before and after a question of the
    leader that is not.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._answered: dict[str, Answered] = {}

    def look(self, own: Unanswered | None, able: Mapping[str, Standby], now: float) -> bool:
        """`own`: None where the leader was answered last. `able`: the standbys that could lead."""
        if own is None or own.since != self._since:
            self._since, self._answered = own.since if own else 0.0, {}
        if own is None:
            return False
        self._answered = {name: self._seen(name, one.answers, now) for name, one in able.items()}
        return now - own.since >= UNANSWERED_SECONDS and any(
            one.count >= ANSWERS_MIN and own.missed_at > one.since for one in self._answered.values()
        )

    def _seen(self, name: str, number: int, now: float) -> Answered:
        before = self._answered.get(name)
        if before is None:
            return Answered(number)
        if number == before.number:
            return before
        return Answered(number, before.count + 1, before.since if before.count else now)


@dataclass(frozen=True, slots=True)
class Lease:
    """What a leader knows of its own lead."""

    term: int
    renewed_at: float
    """When the last renewal that succeeded was begun."""
    calls_from: float

    def is_valid(self, now: float) -> bool:
        return 0.0 <= now - self.renewed_at < LEASE_SECONDS

    def is_cut_off(self, now: float) -> bool:
        """The next leader may have begun, also in Slurm: agents and launchers are to ask that one."""
        return not 0.0 <= now - self.renewed_at < LEASE_SECONDS + CALL_SECONDS

    def objection(self, now: float) -> str:
        """Why nothing may be changed in Slurm now; empty: it may."""
        if not self.is_valid(now):
            return f"the database has not confirmed for {now - self.renewed_at:.1f} s that this control plane leads"
        if now < self.calls_from:
            return "this control plane took the lead just now, and a call of the one before it may still be under way"
        return ""


URL = re.compile(r"https?://[\w.:/\[\]-]{1,200}")
"""A node may report any text, which people read beside a command."""

WORDS_SECONDS = 60.0
"""An agent looks at the other control planes every half minute."""

AGENTS_SECONDS = 600.0
"""Agents that have reported within this time are counted: where most are silent, the others do not speak for all."""

SURE_SECONDS = 5.0
"""An agent that follows a control plane that was replaced names the one before in its first report to this one, and not
in the next, a second later.
"""


@dataclass(frozen=True, slots=True)
class Word:
    """An agent reports another control plane that leads."""

    node: str
    leading: HeardLeader
    since: float


def is_other(leading: HeardLeader, own: Leader) -> bool:
    """An older term of this installation has lost the lead to this one, and learns it by the same way."""
    return bool(own.installation) and (leading.installation != own.installation or leading.term > own.term)


def other_leader(words: Sequence[Word], agents: int, own: Leader, now: float) -> OtherLeader | None:
    """`words`: of the agents that name another control plane, among all `agents` that have reported lately."""
    sure = [word for word in words if now - word.since >= SURE_SECONDS]
    if not sure:
        return None
    [(shown, _)] = Counter(word.leading for word in sure).most_common(1)
    what = "has taken the lead of this installation" if shown.installation == own.installation else "also leads here"
    which = f"with term {shown.term}" if shown.installation == own.installation else "with a database of its own"
    count = len(sure)
    naming = listed(sorted(word.node for word in sure if word.leading == shown))
    where = f"at {shown.url}" if URL.fullmatch(shown.url) else "at an address that is none"
    return OtherLeader(
        f"the control plane {where} {what}, {which}, as {count} of {agents} agents report ({naming}): "
        "`systemctl disable --now understudy-controlplane` on the host of the one that is not to lead ends that",
        is_believed=2 * count > agents,
    )
