"""Program or hardware: which of them caused an error that both can cause.

The same error on many nodes of one job, or with the same user elsewhere, is the program's; the same on one GPU with
jobs of different users, who have it nowhere else, is the GPU's. Jobs are those that were on the node: where several
were at once, an error counts for none of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable

from understudy_controlplane.config import Xid
from understudy_controlplane.detect.bursts import Reading
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.job import JobThere

Gpu = tuple[str, str]
"""Node and address."""


class Sightings:
    """Recent places of each error in the whole fleet."""

    def __init__(self) -> None:
        self._of_job: dict[tuple[JobThere, int], dict[str, float]] = defaultdict(dict)
        self._of_user: dict[tuple[str, int], set[Gpu]] = defaultdict(set)
        self._times: dict[tuple[JobThere, int], list[float]] = {}

    def note(self, node: str, readings: Iterable[Reading], since: float) -> None:
        for reading in readings:
            code, stored = reading.line.code, reading.stored
            if code is None or stored.event.at < since or len(stored.jobs) != 1:
                continue
            job = stored.jobs[0]
            nodes = self._of_job[job, code]
            nodes[node] = max(stored.event.at, nodes.get(node, 0.0))
            self._of_user[job.user, code].add((node, reading.line.bus_id))

    def nodes_of_job(self, reading: Reading, together_seconds: float) -> int:
        """Nodes of its job that showed the same error at about that time; 0: no job, or several."""
        code, stored = reading.line.code, reading.stored
        if code is None or len(stored.jobs) != 1:
            return 0
        key = stored.jobs[0], code
        if key not in self._times:  # a gang of a thousand asks a thousand times
            self._times[key] = sorted(self._of_job[key].values())
        times = self._times[key]
        first = bisect_left(times, stored.begun_at - together_seconds)
        return bisect_right(times, stored.event.at + together_seconds) - first

    def only_on(self, user: str, code: int, gpu: Gpu) -> bool:
        """True if this user's jobs had the error on no other GPU."""
        return self._of_user[user, code] <= {gpu}


def suspicion(reading: Reading, history: Iterable[Reading], node: str, sightings: Sightings, policy: Xid) -> str:
    """Why the GPU itself is suspicious after this error of a program; empty: it is not.

    `history` is the node's. Errors of users who had the same error on another GPU do not count: their program is the
    cause.
    """
    code, bus_id, at = reading.line.code, reading.line.bus_id, reading.stored.event.at
    if code is None or not bus_id:
        return ""
    since = at - policy.suspect_hours * HOUR_SECONDS
    seen = [
        one.stored.jobs[0]
        for one in history
        if (one.line.code, one.line.bus_id) == (code, bus_id)
        and _same_place(one, reading)
        and since <= one.stored.event.at <= at
        and len(one.stored.jobs) == 1
        and sightings.only_on(one.stored.jobs[0].user, code, (node, bus_id))
    ]
    events, jobs = len(seen), set(seen)
    users = {job.user for job in jobs}
    if events < policy.suspect_events_min or len(jobs) < 2 or len(users) < policy.suspect_users_min:
        return ""
    where = f" ({reading.line.location})" if reading.line.location else ""
    return (
        f"the same GPU{where} had it {times(events)} within {policy.suspect_hours:g} h in {len(jobs)} jobs of "
        f"{len(users)} users, who had it nowhere else"
    )


def _same_place(one: Reading, other: Reading) -> bool:
    """True unless both name a part of the GPU and the parts differ."""
    return not (one.line.location and other.line.location) or one.line.location == other.line.location
