"""Xids and SXids: from the kernel log of each node to findings.

In this order: the policy's row for the line, the driver's own recovery action, whether it is an echo, whether it came
too often, whether the program is the cause. The policy is data (`xid_policy`). A code without a row is recorded and
condemns no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from understudy_controlplane.config import Xid
from understudy_controlplane.detect.attribution import Sightings, suspicion
from understudy_controlplane.detect.bursts import CONDEMNING, RECOVERY_ACTION, Burst, Reading, bursts
from understudy_controlplane.detect.line_verdict import RECORD, Verdict, line_verdict, policy_row
from understudy_controlplane.detect.node_log import read
from understudy_controlplane.fleet.counted import times as times_words
from understudy_controlplane.fleet.drill import WORDS, is_drill
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.node import NodeView, StoredKernelEvent
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import FaultClass, Policy, Repair, driver_branch
from understudy_wire.kernel_line import Form, KernelLine, is_about_a_device

TOGETHER_SECONDS = 1.0
"""The driver logs its recovery action together with the error that it is for, not always after it."""

FAULT_FORMS = frozenset({Form.XID, Form.SXID, Form.LOST})
"""Lines that report a fault; the others add to one."""

SIGNALS = {
    FaultClass.HARDWARE: Signal.HARDWARE_FAULT,
    FaultClass.DRAIN: Signal.DRAIN_AT_JOB_END,
    FaultClass.APPLICATION: Signal.APPLICATION_FAULT,
    FaultClass.SUSPECT: Signal.HEALTH_SUSPECTED,
    FaultClass.RECORD: Signal.RECORDED,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """An event with its judgement."""

    reading: Reading
    burst: Burst
    finding: Finding

    @property
    def why(self) -> str:
        """The verdict's reason, for people."""
        return self.reading.verdict.why or self.reading.meaning


def xid(snapshot: Snapshot, policy: Xid) -> Iterator[Finding]:
    for name, judged in judge_logs(snapshot, policy).items():
        for one in judged:
            yield one.finding
        yield from _unread(snapshot.nodes[name])


def judge_logs(snapshot: Snapshot, policy: Xid) -> dict[str, list[Judged]]:
    """Node → its events of this boot, oldest first. Nodes without any are not in it."""
    talking = [node for node in snapshot.notable if node.events]
    if not talking:
        return {}
    # Errors of a program are looked for on all nodes: also on those that have booted again since.
    remembered = {
        node.name: _readings(node, node.history or node.events, policy.rows)
        for node in snapshot.notable
        if node.history or node.events
    }
    sightings = Sightings()
    for name, readings in remembered.items():
        latest = max((one.stored.event.at for one in readings), default=0.0)
        sightings.note(name, readings, latest - policy.suspect_hours * HOUR_SECONDS)
    return {node.name: _judge_node(snapshot, node, remembered[node.name], sightings, policy) for node in talking}


def _judge_node(
    snapshot: Snapshot, node: NodeView, history: Sequence[Reading], sightings: Sightings, policy: Xid
) -> list[Judged]:
    readings = _by_driver(node, _readings(node, node.events, policy.rows), policy.rows)
    vouched = [one for one in history if one.stored.received_at > node.record.cleared_at]
    all_alike, vouched_alike = _alike(history), _alike(vouched)
    found: list[Judged] = []
    for burst in bursts(readings, policy.burst_silence_seconds, policy.echo_seconds):
        for one in burst.readings:
            alike = all_alike if one.verdict.fault in CONDEMNING else vouched_alike
            repeated = _repeated(one, alike, policy.burst_silence_seconds)
            reading = _spread(repeated, snapshot, sightings, policy)
            suspect = ""
            if reading.verdict.fault is FaultClass.APPLICATION:
                suspect = suspicion(reading, vouched, node.name, sightings, policy)
            found.append(Judged(reading, burst, _finding(node, reading, burst, suspect, policy.rows)))
    return found


def _readings(node: NodeView, events: Iterable[StoredKernelEvent], policy: Policy) -> list[Reading]:
    """The events about a fault, each judged by itself. An SXid whose first line is missing counts by the next."""
    lines = [(stored, read(stored)) for stored in events]
    whole = {(line.code, line.bus_id) for _, line in lines if line.form is Form.SXID}
    found = []
    for stored, logged in lines:
        is_cut = logged.form is Form.SWITCH_DATA and (logged.code, logged.bus_id) not in whole
        line = replace(logged, form=Form.SXID) if is_cut else logged
        if line.form in FAULT_FORMS:
            whole.add((line.code, line.bus_id))
            row = policy_row(line, policy)
            found.append(Reading(stored, line, row, line_verdict(line, row, policy, _branch(node, stored))))
    return found


def _branch(node: NodeView, stored: StoredKernelEvent) -> int | None:
    """The branch of the driver that wrote the event, which may differ from the present one."""
    return driver_branch(stored.generation.driver_version or node.driver_version)


def _by_driver(node: NodeView, readings: list[Reading], policy: Policy) -> list[Reading]:
    """The driver's own recovery action, if it logs one, goes before the row of the error that it belongs to.

    Per GPU and boot: the latest Xid 154, or else NVML's present value. An action of 0 means that earlier errors are
    over, mostly by a reset. It clears no error that came with it or later, nor a storm that continues: these count by
    their rows. NVML's 0 may be older than an error and clears nothing.
    """
    latest: dict[str, Reading] = {}
    for reading in readings:
        if reading.line.code == RECOVERY_ACTION and reading.line.form is Form.XID and reading.line.action is not None:
            known = latest.get(reading.line.bus_id)
            if known is None or reading.stored.event.sequence >= known.stored.event.sequence:
                latest[reading.line.bus_id] = reading
    nvml = {gpu.bus_id: gpu.recovery_action for gpu in node.gpus if gpu.bus_id and gpu.recovery_action}
    taken: set[str] = set()
    found: list[Reading] = []
    for reading in readings:
        newest = latest.get(reading.line.bus_id)
        if newest is not None and newest is not reading and newest.line.action == 0 and _before(reading, newest):
            found.append(
                replace(reading, verdict=replace(RECORD, why="the driver has since reported: nothing to be done"))
            )
        elif not _linked(reading, _branch(node, reading.stored), policy):
            found.append(reading)
        elif (
            newest is not None
            and newest.line.action
            and reading.stored.begun_at <= newest.stored.event.at + TOGETHER_SECONDS
        ):
            taken.add(reading.line.bus_id)
            found.append(replace(reading, verdict=newest.verdict, by_driver=True))
        elif newest is None and (action := policy.recovery_action.get(nvml.get(reading.line.bus_id, 0) or -1)):
            why = f"NVML reports: {action.meaning}"
            found.append(replace(reading, verdict=Verdict(action.fault, action.repair, why), by_driver=True))
        else:
            found.append(reading)
    return [_counted_with_another(one, taken, latest) for one in found]


def _linked(reading: Reading, branch: int | None, policy: Policy) -> bool:
    """True if this driver logs its recovery action with such an error. A row that the site has set applies as it is."""
    since = reading.row.action_since if reading.row else None
    if since is None or reading.line.form is Form.SXID or ("xid", reading.line.code) in policy.overridden:
        return False
    return branch is None or branch >= since


def _counted_with_another(reading: Reading, taken: set[str], latest: dict[str, Reading]) -> Reading:
    """An Xid 154 that speaks for another error, or that a later one has replaced, is no fault of its own."""
    if reading.line.code != RECOVERY_ACTION or reading.line.form is not Form.XID or reading.line.action is None:
        return reading
    newest = latest[reading.line.bus_id]
    if newest.stored is not reading.stored:
        return replace(reading, verdict=replace(RECORD, why="the driver has since reported another action"))
    if reading.line.bus_id in taken and reading.verdict.fault is not FaultClass.RECORD:
        return replace(reading, verdict=replace(RECORD, why=f"{reading.verdict.why}; counted with the error it is for"))
    return reading


def _before(reading: Reading, newest: Reading) -> bool:
    return reading.stored.event.sequence < newest.stored.event.sequence


def _alike(readings: Iterable[Reading]) -> dict[tuple[int | None, str], list[Reading]]:
    """Readings by code and GPU, oldest first."""
    found: dict[tuple[int | None, str], list[Reading]] = {}
    for reading in sorted(readings, key=lambda one: one.order):
        found.setdefault((reading.line.code, reading.line.bus_id), []).append(reading)
    return found


def _repeated(reading: Reading, alike: dict[tuple[int | None, str], list[Reading]], silence_seconds: float) -> Reading:
    """The same error so many times on the same GPU that it counts as more.

    A fault that comes back after a repair is more serious, so for faults all are `alike`; an error that condemns no
    node by itself counts from the time when the node was last cleared.
    """
    rule = reading.row.repeat if reading.row else None
    over = reading.verdict.fault is FaultClass.RECORD and reading.verdict.why  # an echo, or by the driver's own verdict
    if rule is None or over:
        return reading
    since = reading.stored.event.at - rule.hours * HOUR_SECONDS
    times = 0
    until = float("-inf")
    for one in alike.get((reading.line.code, reading.line.bus_id), ()):
        if one.stored.event.at < since or one.order > reading.order:
            continue
        times += one.stored.begun_at - until > silence_seconds
        until = max(until, one.stored.event.at)
    if times < rule.times:
        return reading
    why = f"seen {times_words(times)} within {rule.hours:g} h on this GPU"
    fault = reading.verdict.fault if reading.verdict.fault in CONDEMNING else rule.fault
    return replace(reading, verdict=Verdict(fault, rule.repair, why))


def _spread(reading: Reading, snapshot: Snapshot, sightings: Sightings, policy: Xid) -> Reading:
    """Errors that a program can cause, too: on several nodes of one job at once the program is the cause."""
    row, verdict = reading.row, reading.verdict
    may_be_program = verdict.fault is FaultClass.APPLICATION or (row is not None and row.spread)
    if not may_be_program or reading.echo_of or reading.by_driver:
        return reading
    nodes = sightings.nodes_of_job(reading, policy.burst_silence_seconds)
    if nodes >= policy.spread_nodes_min:
        job = reading.stored.jobs[0]
        why = f"{nodes} nodes of job {job.job_id} of {job.user} had it: the program is the cause"
        return replace(reading, verdict=Verdict(FaultClass.APPLICATION, Repair.RESTART_APP, why))
    waited = snapshot.now - reading.stored.received_at >= policy.spread_wait_seconds
    if verdict.fault in CONDEMNING and not waited:
        return replace(reading, verdict=replace(RECORD, why="waits for reports of the other nodes of its job"))
    return reading


def _finding(node: NodeView, reading: Reading, burst: Burst, suspect: str, policy: Policy) -> Finding:
    stored, line, verdict = reading.stored, reading.line, reading.verdict
    event = stored.event
    meaning = reading.meaning
    drill = WORDS if is_drill(event.text) else ""
    summary = [meaning, *(words for words in (verdict.why, suspect) if words and words != meaning)]
    gpu = next((gpu for gpu in node.gpus if gpu.bus_id and gpu.bus_id == line.bus_id), None)
    kind = "sxid" if line.form is Form.SXID else "xid"
    evidence: dict[str, Json] = {
        kind: line.code,
        "bus_id": line.bus_id,
        "boot_id": event.boot_id,
        "sequence": event.sequence,
        "kernel_log": event.text,
        "class": verdict.fault.value,
        "repair": verdict.repair.value,
        "why": verdict.why or meaning,
        "count": stored.count,
        "details": line_details(line),
        "policy": policy.version + (", changed by this site" if (kind, line.code) in policy.overridden else ""),
        "burst": burst_shown(burst),
    }
    if stored.generation.driver_version:
        evidence["driver_version"] = stored.generation.driver_version
    if gpu is not None:
        evidence |= {"gpu": gpu.index, "uuid": gpu.uuid, "serial": gpu.serial}
    if reading.echo_of:
        evidence["echo_of"] = reading.echo_of
    if stored.jobs:
        evidence["jobs"] = [f"{job.job_id} of {job.user}" for job in stored.jobs]
    return Finding(
        signal=Signal.HEALTH_SUSPECTED if suspect else SIGNALS[verdict.fault],
        rule="gpu.lost" if line.form is Form.LOST else f"{kind}.{line.code}",
        node=stored.node,
        at=stored.begun_at,
        summary=f"{drill}{reading.name} on {reading.device}: {'; '.join(summary)}",
        evidence=Evidence(evidence),
        detail=HardwareDetail(
            repair=verdict.repair,
            part=line.bus_id,
            gpu=line.bus_id if gpu is not None or line.form is not Form.SXID else "",
            uuid=gpu.uuid if gpu is not None else "",
            boot_id=event.boot_id,
            is_event=True,
        ),
    )


def line_details(line: KernelLine) -> dict[str, Json]:
    """The fields that are known, by name. Form, code, address and message are evidence of their own."""
    found: dict[str, Json] = {}
    for field in fields(line):
        value = getattr(line, field.name)
        if field.name in ("form", "code", "bus_id", "message") or value is None or value in ("", ()):
            continue
        if field.name == "words":
            found["words"] = [f"0x{word:08x}" for word in value]
        elif field.name == "counts":
            found["counts"] = dict(value)
        else:
            found[field.name] = value
    return found


def burst_shown(burst: Burst) -> dict[str, Json]:
    return {
        "since": burst.since,
        "until": burst.until,
        "events": burst.events,
        "blamed": f"{burst.blamed.name} on {burst.blamed.device}" if burst.blamed else None,
    }


def _unread(node: NodeView) -> Iterator[Finding]:
    """Lines of the driver about an Xid in a form that is not known here: for people to look at."""
    for stored in node.events:
        is_unknown = stored.event.xid is None and read(stored).form is Form.OTHER
        if is_unknown and is_about_a_device(stored.event.text):
            yield Finding(
                Signal.RECORDED,
                "xid.unread",
                node.name,
                stored.event.at,
                "the driver reports an Xid in an unknown form",
                Evidence(
                    {
                        "boot_id": stored.event.boot_id,
                        "sequence": stored.event.sequence,
                        "kernel_log": stored.event.text,
                    }
                ),
                detail=HardwareDetail(boot_id=stored.event.boot_id, is_event=True),
            )
