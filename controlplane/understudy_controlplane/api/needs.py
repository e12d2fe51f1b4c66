"""What waits for a person, as every view shows it: what the newest round found, and problems of the control plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from understudy_controlplane.access.token_ends import ending_soon
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.figures.advice import hooks_missing
from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.store.database import StoreError

TICK_AGE_MAX_SECONDS = 15.0
TICKETS_READ = 100
STANDBY_GONE_SECONDS = 300.0
"""The alert waits as long: a standby may be restarted meanwhile."""
LOG = "`journalctl -u understudy-controlplane`"


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of the control plane itself. `cause` can contain paths, addresses and SQL."""

    what: str
    cause: str = ""
    since: float | None = None
    command: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}" if self.cause else self.what


class NeedRecord(msgspec.Struct, frozen=True):
    """`since`: null where it is not known. `command`: what ends it, or shows what does; empty: see `why`.
    `urgent`: it does not wait until the morning.
    """

    kind: NeedKind
    subject: str
    since: float | None
    why: str
    command: str
    urgent: bool

    def __str__(self) -> str:
        return f"{self.why}: {self.command}" if self.command else self.why


def all_needs(deps: ReadDependencies) -> list[NeedRecord]:
    """All needs, with what only the database shows. The one list behind status, dashboard, and exit code."""
    problems = [*problems_of(deps.pulse, deps.clock.now()), *_of_database(deps)]
    return [*map(_own, problems), *_with_tickets(deps, list(needs_of(deps.pulse, deps.clock.now())))]


def needs_of(pulse: Pulse, now: float) -> Iterator[NeedRecord]:
    """Needs from memory alone, for metrics."""
    yield from map(_own, shortcomings(pulse))
    yield from map(_own, _without_standby(pulse.leading, now))
    if pulse.slurm.error:
        yield _own(Problem("Slurm cannot be read", pulse.slurm.error, pulse.slurm.at, "`understudy doctor`"))
    for text in pulse.config_problems:
        yield _own(Problem(text))
    for text in ending_soon(pulse.token_ends, now):
        yield _own(Problem(text))
    if missing := hooks_missing(pulse.slurm.settings):
        why = f"slurm.conf names some of the hooks, and not {', '.join(missing)}"
        command = "`understudy install-hooks --check` on slurmctld's host shows what is missing, then with "
        command += "`--edit-slurm-conf`"
        yield NeedRecord(NeedKind.HOOKS_MISSING, "slurm.conf", None, why, command, urgent=False)
    for text in pulse.notify_problems:
        yield NeedRecord(NeedKind.NOTIFICATIONS, "notifications", None, text, "", urgent=False)
    for one in sorted(pulse.needs, key=lambda one: not one.is_urgent(now)):
        if one.is_due(now):
            yield NeedRecord(one.kind, one.subject, one.since, one.why, one.command, one.is_urgent(now))


def problems_of(pulse: Pulse, now: float) -> Iterator[Problem]:
    """Why its loop does not do its work."""
    age = now - pulse.last_tick_at
    if age > TICK_AGE_MAX_SECONDS:
        cause = pulse.last_error or "it hangs"
        yield Problem(f"the loop has not ticked for {age:.0f} s", cause, pulse.last_tick_at, LOG)
    elif pulse.last_error:
        yield Problem("the last tick failed", pulse.last_error, command=LOG)
    if pulse.slurm.at is None:
        yield Problem("Slurm has not been read since the start", pulse.slurm.error or "the first tick runs")


def shortcomings(pulse: Pulse) -> list[Problem]:
    """What its loop cannot do, though it does its work."""
    found = [Problem(one.effect, one.cause, command=LOG) for one in pulse.failed_detectors.values()]
    if pulse.objection:
        found.append(Problem("this control plane changes nothing in Slurm", pulse.objection, command=LOG))
    return found


def _without_standby(leading: Leading | None, now: float) -> Iterator[Problem]:
    since = leading.gone_since if leading is not None else None
    if leading is not None and since is not None and now - since >= STANDBY_GONE_SECONDS:
        what = f"no control plane stands by any more; seen before: {', '.join(sorted(leading.seen_at))}"
        yield Problem(what, "", since, "`systemctl status understudy-controlplane` there")


def own_problems(deps: ReadDependencies) -> list[Problem]:
    return [*problems_of(deps.pulse, deps.clock.now()), *_of_database(deps)]


def _of_database(deps: ReadDependencies) -> Iterator[Problem]:
    try:
        deps.queries.alive()
    except StoreError as error:
        yield Problem("the database does not answer", type(error).__name__)


def _own(problem: Problem) -> NeedRecord:
    kind, since = NeedKind.CONTROL_PLANE, problem.since
    return NeedRecord(kind, "control plane", since, str(problem), problem.command, urgent=False)


def _with_tickets(deps: ReadDependencies, found: list[NeedRecord]) -> list[NeedRecord]:
    """Who deals with a node already."""
    tickets: Mapping[str, Mapping[str, object]] = {}
    if any(one.kind is NeedKind.NODE_OUT for one in found):
        newest = deps.stores.tickets.tickets(TICKETS_READ, is_open=True)
        tickets = {one["node"]: one for one in reversed(newest)}
    return [
        msgspec.structs.replace(one, why=f"{one.why}; ticket {ticket['id']}, {_by(ticket)}")
        if one.kind is NeedKind.NODE_OUT and (ticket := tickets.get(one.subject)) is not None
        else one
        for one in found
    ]


def _by(ticket: Mapping[str, object]) -> str:
    by = ticket["acknowledged_by"]
    return f"{by} deals with it" if by else "not acknowledged yet"
