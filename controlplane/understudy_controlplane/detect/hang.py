"""Hangs: a gang that finishes no step any more, and which ranks have not entered the collective in which others wait.

The time limit is learnt from the gang's own pauses between steps, including checkpoints. Other reasons for missing
steps are no hang: agents that do not report, a control plane that has just started. Ranks that have not entered the
collective in which their peers wait are named; when all have entered it, the cause is the network or the program, and
none is named. Before a gang is restarted its ranks are asked what they wait for (`hang_verdict`), for a bounded time.

A gang whose ranks report no collectives has no such witness. It is restarted after a longer time, learnt from the job
itself: its start-ups, pauses between steps, and the sections that it names each have their own. No node is named.

Gangs that stopped at the same time have one cause, and a restart of each would not remove it: the network, the storage
or the control plane; of one user's gangs also what these alone share, such as a licence server. So the gangs of one
user are one witness against the site where others run gangs as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from understudy_controlplane.config import Hang, Mode, Silence
from understudy_controlplane.detect.common_cause import TOGETHER_SECONDS, domain_faults
from understudy_controlplane.detect.hang_verdict import IDLE_SECONDS, RankShown, Verdict, verdict
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import HANGS, Finding, HangDetail, HungRanks, Signal
from understudy_controlplane.fleet.incident import PORT_DOWN, OpenIncident
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.recovery import StepName
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.fleet.topology import REDUNDANT
from understudy_controlplane.hostlist import compress

RANKS_SHOWN_MAX = 32

STACKS_SHOWN_MAX = 5

GROUP_CHARACTERS_MAX = 200

APART_MAX = 3
"""More ranks that stand elsewhere than the others point to none of them."""

STANDING_SHARE = 2 / 3
"""Share of the time after which a gang counts as hung."""

ASK_SECONDS = 30.0
"""Most time by which a restart waits for what the ranks show: two looks of the hook, and the reports between."""

PLACE_SECONDS = 10.0
"""What is known of a rank that stands still is at most this old."""

REPORTED_SECONDS = 10.0
"""Steps, and ports that are down, are known to this."""

WORKING_POWER_SHARE = 0.35
"""Share of a GPU's power limit. A large one that waits in a collective takes a fifth to a quarter (judgement)."""

MORE_POWER_FACTOR = 1.3
"""Least power of a GPU that computes, as a multiple of the median of those that wait in the collective (judgement)."""


def hang(snapshot: Snapshot, policy: Hang, silence: Silence) -> Iterator[Finding]:
    running = {table.job: table for table in snapshot.progress.tables.values() if _runs(table, snapshot)}
    tables = (*running.values(), *(one.table for one in snapshot.interrupted.values()))
    switches = [
        one for one in snapshot.incidents.values() if one.rule == PORT_DOWN and one.subject.kind is SubjectKind.DOMAIN
    ]
    explained = {table.job for table in tables if _explained_by_a_switch(snapshot, table, switches)}
    standing = _Standing(snapshot, policy, running.values(), explained)
    stopped: list[tuple[str, float]] = []
    for reported in running.values():
        since = _still_since(reported, snapshot)
        table = _now_of(reported, snapshot)
        if snapshot.now - since <= patience_seconds(table, policy):
            continue
        nodes = _nodes_of(reported)
        if not nodes or not all_report(nodes, snapshot, silence):
            continue
        stopped_at = standing.stopped_at(table.job, _stopped_at(reported, snapshot))
        together = standing.with_gang(table.job, stopped_at)
        found = _not_for_a_switch(snapshot, [*_acted_on(_hung(table, nodes, snapshot, since), table, snapshot, policy)])
        if table.job in explained:
            yield from found
        elif together is None:
            hangs = found[0].signal in HANGS
            undecided = hangs and standing.may_be_with_gang(table.job, stopped_at)
            yield from [_undecided(found[0], nodes)] if undecided else found
        else:
            one = _with_others(found[0], nodes, together)
            yield one
            stopped += [(name, stopped_at) for name in nodes if one.signal is Signal.GANG_HUNG_TOGETHER]
    yield from domain_faults(snapshot, "hang.together", stopped, "the gangs on them stopped at the same time")


def may_be_mass_hang(snapshot: Snapshot, policy: Hang) -> bool:
    """True if so many gangs stand still, also where they did not stop together."""
    running = [table for table in snapshot.progress.tables.values() if _runs(table, snapshot)]
    return _Standing(snapshot, policy, running).is_mass()


class _Standing:
    """Managed gangs that make no progress, by when they stopped, and what they are evidence of. One that stood when it
    was suspended, requeued or cancelled is still one of those that stopped together, until it makes a step again: that
    it has left removes no cause. If its new attempt stands as well, that is a stop of its own, and counts beside the
    first.

    Jobs that are not managed may be a notebook at rest: they count neither way.
    """

    def __init__(
        self, snapshot: Snapshot, policy: Hang, running: Iterable[StepTable], explained: Container[JobKey] = ()
    ) -> None:
        self._snapshot, self._policy = snapshot, policy
        tables = [*running]
        before = {
            one.table.job: _last_sign(one.table, snapshot)
            for one in snapshot.interrupted.values()
            if self._is_witness(one.table) and _stands(one.table, policy, _last_sign(one.table, snapshot), one.at)
        }
        self._before = {key: at for key, at in before.items() if key not in explained}
        attempts = {one.table.job: one.table.attempt for one in snapshot.interrupted.values()}
        self._again = {one.job for one in tables if one.attempt != attempts.get(one.job, one.attempt)}
        """New attempts of those that were interrupted."""
        stopped = {table.job: _stopped_at(table, snapshot) for table in tables if self._is_witness(table)}
        standing = {
            table.job: stopped[table.job]
            for table in tables
            if table.job in stopped
            and table.job not in explained
            and _stands(_now_of(table, snapshot), policy, stopped[table.job], snapshot.now)
        }
        since = standing | self._before
        there = {table.job for table in tables} | {key for key in since if snapshot.jobs[key].slurm.suspended}
        self._holding = there - (self._again - standing.keys())
        """Those that can be in a cause that lasts: a new attempt that has not stood yet only loads."""
        pausing = stopped | before
        self._pausing = {key: at for key, at in pausing.items() if key not in since}
        """Since when, of those that make progress, have paused no longer than before, or stopped with a switch."""
        witnesses = {*self._before, *(key for key in stopped if key not in explained)}
        self._users = {snapshot.jobs[key].slurm.user for key in witnesses}
        self._running = len(witnesses & there)
        stops = [*since.items(), *((key, standing[key]) for key in self._again & standing.keys() & self._before.keys())]
        stops.sort(key=lambda stop: stop[1])
        self._since = [at for _, at in stops]
        self._jobs = [snapshot.jobs[key] for key, _ in stops]
        self._groups: dict[tuple[int, int], tuple[Counter[str], bool]] = {}

    def _is_witness(self, table: StepTable) -> bool:
        """One that completed did something else at its end."""
        job = self._snapshot.jobs[table.job]
        return job.managed and job.slurm.state != "COMPLETED"

    def stopped_at(self, key: JobKey, since: float) -> float:
        """When it stopped before it was suspended; `since` if it was not, or is another attempt."""
        return since if key in self._again else self._before.get(key, since)

    def with_gang(self, key: JobKey, since: float) -> HangDetail | None:
        """What those are that stopped when this one did; None: nothing that they share is the cause."""
        users, mass = self._stopped_with(since)
        if not self._are_enough(users, key):
            return None
        return HangDetail(together=users.total(), mass=mass, user=next(iter(users)) if len(users) == 1 else "")

    def may_be_with_gang(self, key: JobKey, since: float) -> bool:
        """True if enough others have made no step since this one stopped, though some pause no longer than before, and
        make one soon or count as standing; or it may have stopped with the switch that they are behind.
        """
        late = min(TOGETHER_SECONDS, STANDING_SHARE * self._policy.seconds_min)
        pausing = [one for one, at in self._pausing.items() if since - TOGETHER_SECONDS <= at <= since + late]
        if not pausing:
            return False
        users = self._stopped_with(since)[0] + Counter(self._snapshot.jobs[one].slurm.user for one in pausing)
        return self._are_enough(users, key)

    def is_mass(self) -> bool:
        return self._group(0, len(self._jobs))[1]

    def _stopped_with(self, since: float) -> tuple[Counter[str], bool]:
        first = bisect_left(self._since, since - TOGETHER_SECONDS)
        return self._group(first, bisect_right(self._since, since + TOGETHER_SECONDS))

    def _are_enough(self, users: Counter[str], key: JobKey) -> bool:
        job = self._snapshot.jobs[key]
        return job.managed and max(self._witnesses(users), users[job.slurm.user]) >= self._policy.together_gangs

    def _group(self, first: int, end: int) -> tuple[Counter[str], bool]:
        """Group counted once: most gangs that stopped together share it. Those that have left do not hold back what
        others need.
        """
        if (first, end) not in self._groups:
            jobs = [*{job.key: job for job in self._jobs[first:end]}.values()]  # one may have stopped twice
            users = Counter(job.slurm.user for job in jobs)
            holding = [job for job in jobs if job.key in self._holding]
            share = len(holding) >= self._policy.together_share * self._running
            many = self._witnesses(Counter(job.slurm.user for job in holding)) >= self._policy.together_gangs
            self._groups[first, end] = users, share and many and self._are_apart(holding)
        return self._groups[first, end]

    def _witnesses(self, users: Counter[str]) -> int:
        """Those of the user with the most gangs count as one, unless no other user runs any."""
        return users.total() if len(self._users) <= 1 else users.total() - max(users.values(), default=0) + 1

    def _are_apart(self, jobs: Sequence[Job]) -> bool:
        """They share neither their nodes, as jobs of single GPUs may, nor a switch or rack that others are not in."""
        nodes = {name for job in jobs for name in job.slurm.nodes}
        around = self._snapshot.topology.of_node.get(min(nodes, default=""), ())
        inside = any(
            one.kind not in REDUNDANT and len(one.nodes) < len(self._snapshot.nodes) and nodes.issubset(one.nodes)
            for one in around
        )
        return len(nodes) >= self._policy.together_gangs and not inside


def _explained_by_a_switch(snapshot: Snapshot, table: StepTable, switches: Sequence[OpenIncident]) -> bool:
    """It stopped when ports of its nodes went down with those of their switch: why is known, and has a plan of its own,
    however many gangs they are. One that stopped at another time has another cause.
    """
    return bool(switches) and any(_stopped_with(snapshot, table, one) for one in switches)


def _stopped_with(snapshot: Snapshot, table: StepTable, incident: OpenIncident) -> bool:
    """True if it stopped at about the time of the fault of its nodes, as far as this process can know: of the first
    one, or of one that its nodes' ports show now. The incident may still be open when the switch fails again.
    """
    nodes = {name for name in table.nodes if name}  # those that it had then
    since, first = _still_since(table, snapshot), incident.fault_at or incident.opened_at
    early = _step_seconds_max(table)
    behind = [
        snapshot.nodes[name]
        for name in nodes & snapshot.nodes.keys()
        if snapshot.behind_failed_switch.get(name) is incident
    ]
    failed = [at for node in behind for at in node.ports_down_since(snapshot.now)]
    if any(-early <= since - at <= TOGETHER_SECONDS for at in failed):
        return True
    if {*incident.nodes}.isdisjoint(nodes):
        return False
    if since <= snapshot.started_at:  # before this process was there: when is not known
        return incident.opened_at <= snapshot.started_at
    return since - first >= -early and since - incident.opened_at <= TOGETHER_SECONDS


def _step_seconds_max(table: StepTable) -> float:
    """Longest time before a fault at which the last step may have ended of a gang that the fault stopped."""
    known = table.longest_pause_seconds
    return min(TOGETHER_SECONDS, known + REPORTED_SECONDS) if known else TOGETHER_SECONDS


def still_stopped_by(snapshot: Snapshot, incident: OpenIncident) -> bool:
    """True if a gang that stopped with the fault has finished no step since, or pauses for longer than it ever did."""
    for table in snapshot.progress.tables.values():
        if _runs(table, snapshot) and _stopped_with(snapshot, table, incident):
            since = _still_since(table, snapshot)
            if since <= incident.opened_at or snapshot.now - since > table.longest_pause_seconds:
                return True
    return False


def _not_for_a_switch(snapshot: Snapshot, found: list[Finding]) -> list[Finding]:
    """Who waits for a node behind a switch that has failed names the switch, not the node."""
    behind = [one for one in found if one.signal is Signal.GANG_HUNG and one.node in snapshot.behind_failed_switch]
    if not behind:
        return found
    others = [one for one in found if one not in behind]
    label = snapshot.behind_failed_switch[behind[0].node].subject.name
    words = f"{behind[0].summary}; the ports of {label} went down together"
    return others or [
        replace(behind[0], signal=Signal.GANG_HUNG_UNNAMED, node="", rule="hang.switch", summary=words, detail=None)
    ]


def not_before_its_switch(snapshot: Snapshot, found: list[Finding], *, ports_known: bool = True) -> list[Finding]:
    """A gang that hangs behind a switch is looked at when the switch has an incident: in the round that finds both, it
    would be restarted where it can only hang again. Where it is not known which ports fail together (`ports_known`),
    any port that is down may be one of them.
    """
    faults = [one for one in found if one.signal is Signal.DOMAIN_FAULT and one.rule == PORT_DOWN]
    new = {name for one in faults if one.subject not in snapshot.incidents for name in one.nodes}
    if not ports_known:
        new |= {node.name for node in snapshot.unusual if node.has_port_down}
    if not new:
        return found
    behind = {key for key, job in snapshot.jobs.items() if not new.isdisjoint(job.slurm.nodes)}
    return [one for one in found if one.signal not in HANGS or one.job not in behind]


def _runs(table: StepTable, snapshot: Snapshot) -> bool:
    """True if ranks of its present launch are there, as far as is known."""
    job = snapshot.jobs.get(table.job)
    return job is not None and job.running and (_starts(table, snapshot) or not _is_past(table, snapshot))


def _starts(table: StepTable, snapshot: Snapshot) -> bool:
    """True if its recovery has seen the processes of a later launch than the table is of."""
    return _processes_since(table, snapshot) > max(table.advanced_at, table.heard_since)


def _is_past(table: StepTable, snapshot: Snapshot) -> bool:
    """True if its ranks have ended, or its launcher has begun another launch since, of which no step is known yet. A
    second launcher in the same script counts its launches from 0.
    """
    gang = snapshot.progress.gangs.get(table.job)
    if table.ended:
        return True
    if gang is None or gang.attempt == table.attempt:
        return False
    return gang.attempt > table.attempt or (gang.heard_at or 0.0) > max(table.advanced_at, table.heard_since)


def _still_since(table: StepTable, snapshot: Snapshot) -> float:
    """Steps of the time in which its agents were not heard may be lost: that does not count."""
    return max(_stopped_at(table, snapshot), (table.advanced_at or table.heard_since) + table.unheard_seconds)


def _stopped_at(table: StepTable, snapshot: Snapshot) -> float:
    """The earliest time at which it may have stopped."""
    return max(_last_sign(table, snapshot), _processes_since(table, snapshot))


def _last_sign(table: StepTable, snapshot: Snapshot) -> float:
    """Last progress of the launch that the table is of, as far as this process can know."""
    section = table.section_since if table.section else table.left_section_at
    return max(table.advanced_at or table.heard_since, section, snapshot.started_at)


def _processes_since(table: StepTable, snapshot: Snapshot) -> float:
    """When the processes of a gang that recovers were there. The table is that of its last launch until they report."""
    recovery = snapshot.recovery_of(table.job)
    processes = recovery.step(StepName.AWAIT_PROCESSES) if recovery is not None else None
    return (processes.done_at or 0.0) if processes is not None else 0.0


def _now_of(table: StepTable, snapshot: Snapshot) -> StepTable:
    return _starting(table) if _starts(table, snapshot) else table


def _starting(table: StepTable) -> StepTable:
    """Table without what its ranks did before they were started again: that names none of them."""
    unknown = np.full_like(table.sequences, -1)
    return replace(
        table, advanced_at=0.0, section="", sequences=unknown, inside=np.zeros_like(table.inside), stacks={}, at_rest={}
    )


def _stands(table: StepTable, policy: Hang, since: float, until: float) -> bool:
    """False: it has paused no longer than before. Its limit may be longer than that of others, and is over before the
    first of those that stopped together counts as hung.
    """
    least = max(table.longest_pause_seconds, min(TOGETHER_SECONDS, STANDING_SHARE * policy.seconds_min))
    return until - since > min(least, STANDING_SHARE * patience_seconds(table, policy))


def _undecided(finding: Finding, nodes: Sequence[str]) -> Finding:
    """A gang that hangs, and of which only the next steps of others, or their absence, show whether it is alone."""
    summary = f"{finding.summary}; other gangs have made no step since either: it is not known yet if it is alone"
    signal, rule = Signal.GANG_HUNG_TOGETHER, "hang.together"
    return replace(finding, signal=signal, rule=rule, node="", nodes=tuple(nodes), summary=summary)


def _with_others(finding: Finding, nodes: Sequence[str], detail: HangDetail) -> Finding:
    if finding.signal not in HANGS:
        return finding
    return replace(
        finding,
        signal=Signal.GANG_HUNG_TOGETHER,
        rule="hang.together",
        node="",
        nodes=tuple(nodes),
        summary=f"no step of job {finding.job.job_id if finding.job else '?'} has ended since {detail.together} gangs "
        f"stopped at the same time{f', all of user {detail.user}' if detail.user else ''}",
        detail=detail,
    )


def patience_seconds(table: StepTable, policy: Hang) -> float:
    """Seconds allowed for the gang's next step, or for the section that it is in."""
    if table.section:
        longest = table.durations.sections.get(table.section, 0.0)
        return max(policy.seconds_min, policy.factor * longest) if longest else policy.section_seconds
    if not table.advanced_at:
        return policy.first_step_seconds
    learnt = policy.factor * table.longest_pause_seconds if table.longest_pause_seconds else policy.first_step_seconds
    return min(max(policy.seconds_min, learnt), policy.first_step_seconds)


def silent_patience_seconds(table: StepTable, policy: Hang, working: bool, restarts: int = 0) -> float | None:
    """The same for a gang whose ranks are not known to wait for each other, as without marked collectives: no less than
    `first_step_seconds`, and by the longest that the job ever took. None: its first step may take any time, while no
    earlier attempt of it is known.

    `restarts` is how often it was restarted here already. What takes longer than the limit each time, such as an
    evaluation without a section, has twice the time after each.
    """
    longest = table.durations.pause if table.advanced_at else table.durations.startup
    if table.section:
        longest = table.durations.sections.get(table.section, 0.0)
    elif not table.advanced_at and not longest:
        return None
    least = policy.section_seconds if table.section and not longest else policy.first_step_seconds
    return max(least, policy.factor * longest) * (policy.working_factor if working else 1.0) * 2.0**restarts


def working_ranks(table: StepTable, snapshot: Snapshot) -> list[int]:
    """Ranks whose GPU takes as much power as for computing. One that waits in a collective is as busy by its
    utilization, and takes little: where some wait, only who takes clearly more than they do computes. Small GPUs, and
    those with a lowered limit, take more than a third of it at rest.
    """
    taken = [_power_shares(table, rank, snapshot) for rank in range(len(table.nodes))]
    least = WORKING_POWER_SHARE
    waiting = [taken[rank][0] for rank in np.flatnonzero(table.inside).tolist() if len(taken[rank]) == 1]
    if waiting and not table.inside.all():  # where all are inside, none shows what waiting takes
        least = max(least, MORE_POWER_FACTOR * median(waiting))
    return [rank for rank, shares in enumerate(taken) if max(shares, default=0.0) >= least]


def _power_shares(table: StepTable, rank: int, snapshot: Snapshot) -> list[float]:
    """Power of the GPUs that may be the rank's, each as a share of its limit, where both are known."""
    view, index = snapshot.nodes.get(table.nodes[rank]), table.gpus[rank]
    own = [gpu for gpu in view.gpus if index is None or gpu.index == index] if view is not None else []
    return [gpu.power_watts / gpu.power_limit_watts for gpu in own if gpu.power_watts and gpu.power_limit_watts]


def waits_for_work(table: StepTable, working: Sequence[int]) -> bool:
    """All ranks that did not enter the collective which the others wait in compute."""
    outside = not_arrived(table)
    return bool(outside) and {*outside} <= {*working}


def _acted_on(found: Iterator[Finding], table: StepTable, snapshot: Snapshot, policy: Hang) -> Iterator[Finding]:
    """A gang that merely stands still counts as hung when it has taken longer than anything that it did before. So does
    one whose ranks wait for ranks that compute: rank 0 may evaluate alone. Such a wait ends before the first step too.
    """
    working = working_ranks(table, snapshot)
    computes = waits_for_work(table, working)
    for one in found:
        if one.signal is Signal.GANG_HUNG and not computes:
            yield one
            continue
        if one.signal is Signal.GANG_HUNG_UNNAMED:
            yield from _attributed(one, working, table, snapshot, patience_seconds(table, policy))
            continue
        restarts = snapshot.restarts_without_progress(table.job)
        limit = silent_patience_seconds(table, policy, bool(working), restarts)
        if limit is None and one.signal is Signal.GANG_HUNG:
            limit = policy.first_step_seconds * policy.working_factor * 2.0**restarts
        more: dict[str, Json] = {
            "section": table.section,
            "limit_seconds": None if limit is None else round(limit, 1),
            "ranks_working": [*working[:RANKS_SHOWN_MAX]],
        }
        still = replace(one, evidence=one.evidence.with_more(more))
        if limit is None or snapshot.now - one.at <= limit:
            at_rest = replace(still, signal=Signal.GANG_STILL, rule="hang.still", node="", detail=None)
            yield still if one.signal is Signal.GANG_STILL else replace(at_rest, nodes=tuple(_nodes_of(table)))
            return
        if one.signal is Signal.GANG_HUNG:
            yield still
            continue
        at_work = f"GPUs of {counted(len(working), 'rank')} work" if working else "no GPU of it works"
        words = f"{one.summary}; {at_work}; its limit, by what the job did before, is {limit:.0f} s"
        hung = replace(still, signal=Signal.GANG_HUNG_UNNAMED, rule="hang.silent", summary=words)
        yield from _attributed(hung, working, table, snapshot, limit)


def _what_ranks_show(table: StepTable, working: Sequence[int], hung_seconds: float) -> Verdict:
    """`hung_seconds`: since its ranks may have been asked. One counts as idle only if it was before it answered."""
    idle_seconds = max(IDLE_SECONDS, hung_seconds - ASK_SECONDS - PLACE_SECONDS)
    if not table.at_rest:
        return Verdict()
    return verdict(
        [
            RankShown(rank, *table.at_rest.get(rank, (None, None)), rank in working, idle_seconds)
            for rank, node in enumerate(table.nodes)
            if node
        ],
        list(table.nccl.values()),
    )


def _attributed(
    hung: Finding, working: Sequence[int], table: StepTable, snapshot: Snapshot, limit_seconds: float
) -> Iterator[Finding]:
    """Names the nodes of the ranks that hold up the others. `limit_seconds`: after which the gang counts as hung."""
    hung_seconds = snapshot.now - hung.at - limit_seconds
    if _asks(table, snapshot) and hung_seconds <= ASK_SECONDS:
        words = f"{hung.summary}; its ranks are asked what they wait for"
        yield replace(hung, signal=Signal.GANG_ASKED, rule="hang.asked", summary=words)
        return
    seen = _what_ranks_show(table, working, hung_seconds)
    if seen.why:
        more: dict[str, Json] = {"cause": seen.cause.value, "shown_by_ranks": seen.why, "group": seen.group}
        words = f"{seen.why}{_as_one(table, seen.members)}"
        hung = replace(hung, summary=f"{hung.summary}; {words}", evidence=hung.evidence.with_more(more))
    elif apart := who_stands_apart(table.stacks):
        hung = replace(hung, summary=f"{hung.summary}; {apart}")
    nodes = tuple(dict.fromkeys(table.nodes[rank] for rank in seen.suspects))
    named = replace(hung, signal=Signal.GANG_HUNG, rule="hang.shown", nodes=nodes)
    there = {node: [rank for rank in seen.suspects if table.nodes[rank] == node] for node in nodes}
    yield from [replace(named, node=node, detail=_of_ranks(there[node])) for node in nodes] if nodes else [hung]


def _as_one(table: StepTable, members: Sequence[int]) -> str:
    """How a person replaces a whole group of which no rank can be named; empty: it is half of the gang, or more. Who of
    it is at fault is not known, so nothing does that by itself.
    """
    nodes = {table.nodes[rank] for rank in members}
    names = compress(nodes)
    if not nodes or 2 * len(nodes) >= len({*_nodes_of(table)}) or len(names) > GROUP_CHARACTERS_MAX:
        return ""
    command = f"understudy job move {table.job.job_id} REASON --off {names} --dry-run"
    return f"; what it takes to replace its {counted(len(nodes), 'node')}: `{command}`"


def _of_ranks(ranks: Sequence[int]) -> HungRanks:
    return HungRanks(ranks=tuple(ranks[:RANKS_SHOWN_MAX]))


def _asks(table: StepTable, snapshot: Snapshot) -> bool:
    """True while ranks may still show what they wait for. Agents that look at processes pass the question on."""
    paused = snapshot.operator.paused or table.job in snapshot.operator.paused_jobs
    if paused or snapshot.mode_of((), table.job) is Mode.OBSERVE:  # no restart follows
        return False
    if not table.at_rest or not snapshot.jobs[table.job].managed:
        return False
    recorders = [table.at_rest.get(rank, (None, None))[0] for rank, node in enumerate(table.nodes) if node]
    return not all(one is not None and one.still for one in recorders)


def not_arrived(table: StepTable) -> list[int]:
    """Ranks that have left a collective and not entered the one that peers of their role wait in. Empty: no rank can
    be named, because all wait in the same collective, or the collective of some is not known.
    """
    sequences, inside = table.sequences, table.inside
    if len(sequences) == 0 or (sequences < 0).any():
        return []
    roles = np.array(table.roles)
    found: list[int] = []
    for role in dict.fromkeys(table.roles):
        ranks = np.flatnonzero(roles == role)
        behind = sequences[ranks] < sequences[ranks].max()
        # A rank inside an earlier collective waits too: it has entered it, and other ranks have not.
        found += [int(rank) for rank in ranks[behind & ~inside[ranks]]]
    # Many ranks in one collective wait. A few ranks ahead of many are no evidence against the many.
    return sorted(found) if 2 * len(found) <= len(sequences) else []


def all_report(nodes: Sequence[str], snapshot: Snapshot, silence: Silence) -> bool:
    """True if all agents of the gang report: otherwise steps may continue unreported, or `silence` finds the node."""
    views = [snapshot.nodes.get(name) for name in nodes]
    return all(
        view is not None and view.heard_at is not None and snapshot.now - view.heard_at <= silence.silent_after_seconds
        for view in views
    )


def _hung(table: StepTable, nodes: Sequence[str], snapshot: Snapshot, since: float) -> Iterator[Finding]:
    suspects = not_arrived(table)
    seconds = snapshot.now - since
    furthest = int(table.sequences.max(initial=-1))
    evidence: dict[str, Json] = {
        "named": bool(suspects),
        "still_seconds": round(seconds, 1),
        "last_step": -1 if table.number is None else table.number,
        "longest_pause_seconds": round(table.longest_pause_seconds, 3),
        "collective": table.furthest_collective,
        "sequence": furthest,
        "ranks_known": int((table.sequences >= 0).sum()),
        "ranks_inside": int(table.inside.sum()),
        "world_size": len(table.nodes),
    }
    if table.stacks:
        evidence["stacks"] = stacks_shown(table.stacks)
    stands = f"no step of the gang has ended for {seconds:.0f} s"
    if not suspects:
        waits = bool(len(table.inside) and table.inside.all()) or _wait_for_absent(table)
        yield Finding(
            Signal.GANG_HUNG_UNNAMED if waits else Signal.GANG_STILL,  # an evaluation, or a checkpoint, is no hang
            "hang.unexplained" if waits else "hang.still",
            "",
            since,
            f"{stands}; the cause is not known: {_why_none_named(table)}",
            Evidence(evidence),
            job=table.job,
            nodes=tuple(nodes),
        )
        return
    by_node: dict[str, list[int]] = {}
    for rank in suspects:
        by_node.setdefault(table.nodes[rank], []).append(rank)
    for node, ranks in by_node.items():
        shown: list[Json] = [*ranks[:RANKS_SHOWN_MAX]]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, {ranks[0]} among them,"
        behind = int(table.sequences[ranks].min())
        yield Finding(
            Signal.GANG_HUNG,
            "hang.not_arrived",
            node,
            since,
            f"{stands}; {who} left collective {behind} and did not enter "
            f"{table.furthest_collective} ({furthest}), where the others are",
            Evidence({**evidence, "ranks": shown, "ranks_behind": len(ranks), "sequence_behind": behind}),
            job=table.job,
            nodes=tuple(by_node),
            detail=_of_ranks(ranks),
        )


def stacks_shown(stacks: Mapping[int, str]) -> Json:
    """Ranks by where they stand, those that are alone first: most wait, and one does not."""
    groups: dict[str, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        groups.setdefault(stack, []).append(rank)
    fewest = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
    return [
        {"count": len(ranks), "ranks": [*ranks[:RANKS_SHOWN_MAX]], "stack": stack}
        for stack, ranks in (*fewest[: STACKS_SHOWN_MAX - 1], *fewest[STACKS_SHOWN_MAX - 1 :][-1:])
    ]


def who_stands_apart(stacks: Mapping[int, str]) -> str:
    """The few ranks that stand elsewhere than most do, for people: a stack shows no fault. Empty: there are none."""
    ((common, count),) = Counter(stacks.values()).most_common(1) or [("", 0)]
    apart = sorted(rank for rank, stack in stacks.items() if stack != common)
    if not apart or len(apart) > APART_MAX or count <= len(stacks) / 2:
        return ""
    shown = ", ".join(f"rank {rank} stands in {_innermost(stacks[rank])}" for rank in apart)
    return f"{shown}, where {counted(count, 'other')} stand in {_innermost(common)}"


def _innermost(stack: str) -> str:
    return stack.partition(" < ")[0]


def _wait_for_absent(table: StepTable) -> bool:
    """True if the ranks of an attempt that has finished no step yet are all inside a collective, but for some that have
    never connected: these have ended before, or belong to an earlier launch.
    """
    known = np.array([bool(name) for name in table.nodes])
    if table.advanced_at or known.all() or len(table.inside) != len(known):
        return False
    return bool(known.any() and table.inside[known].all())


def _why_none_named(table: StepTable) -> str:
    if len(table.sequences) == 0 or (table.sequences < 0).all():
        return "its ranks do not report their collectives"
    if _wait_for_absent(table):
        return "ranks that have never connected are waited for"
    if (table.sequences < 0).any():
        return "some of its ranks do not report their collectives"
    if table.inside.all():
        return "every rank is inside a collective, so the network or the program is the cause"
    return "no small group of its ranks is behind the others"


def _nodes_of(table: StepTable) -> list[str]:
    return list(dict.fromkeys(name for name in table.nodes if name))
