"""The verdict on one line of the kernel log by itself, according to the policy: fault, repair and reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from understudy_controlplane.xid_policy import Decode, FaultClass, NvlinkUnit, Policy, PolicyRow, Repair
from understudy_wire.kernel_line import Form, KernelLine

FALLEN_OFF_THE_BUS = 79
V2_BRANCH = 575
"""First branch of the driver in which the units of NVLink 5 have other subcodes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    fault: FaultClass
    repair: Repair
    why: str = ""  # more than the row has; empty: the row is the reason


RECORD = Verdict(FaultClass.RECORD, Repair.NONE)


def policy_row(line: KernelLine, policy: Policy) -> PolicyRow | None:
    """A GPU that fell off the bus has the row of Xid 79, in whatever form the driver reports it."""
    if line.form is Form.LOST:
        return policy.xid[FALLEN_OFF_THE_BUS]
    if line.code is None:
        return None
    return (policy.sxid if line.form is Form.SXID else policy.xid).get(line.code)


def line_verdict(line: KernelLine, row: PolicyRow | None, policy: Policy, branch: int | None) -> Verdict:
    """`branch` is that of the driver; None: not known."""
    if line.injected:
        return Verdict(FaultClass.RECORD, Repair.NONE, "a test of the driver made this error (i1)")
    if row is None:
        return _without_row(line)
    if row.decode is None:
        return Verdict(row.fault, row.repair)
    return _READ[row.decode](line, row, policy, branch)


def _without_row(line: KernelLine) -> Verdict:
    if line.form is Form.SXID and line.severity == "fatal":
        return Verdict(FaultClass.HARDWARE, Repair.REBOOT, "the driver calls it fatal")
    return Verdict(FaultClass.RECORD, Repair.NONE, "no rule for this code")


def _flags(line: KernelLine, row: PolicyRow, _policy: Policy, _branch: int | None) -> Verdict:
    if line.reset is None:
        return Verdict(row.fault, row.repair)
    if line.reset:
        return Verdict(FaultClass.HARDWARE, Repair.RESET_GPU, "the driver asks for a reset (RST: Yes)")
    if line.drain_reset:
        return Verdict(FaultClass.DRAIN, Repair.RESET_GPU, "the driver asks for a reset after a drain (D-RST: Yes)")
    return Verdict(FaultClass.APPLICATION, Repair.RESTART_APP, "the driver asks for no reset (RST: No, D-RST: No)")


def _recovery_action(line: KernelLine, row: PolicyRow, policy: Policy, _branch: int | None) -> Verdict:
    if line.action is None:
        return Verdict(row.fault, row.repair, "this release does not know its text")
    action = policy.recovery_action.get(line.action)
    if action is None:
        return Verdict(
            row.fault, row.repair, f"the driver asks for action {line.action}, which this release does not know"
        )
    return Verdict(action.fault, action.repair, f"the driver asks: {action.meaning}")


def _severity(line: KernelLine, row: PolicyRow, _policy: Policy, _branch: int | None) -> Verdict:
    if line.severity == "fatal":
        return Verdict(row.fault, row.repair, "the driver calls it fatal")
    return Verdict(FaultClass.RECORD, Repair.NONE, f"the driver calls it {line.severity or 'nothing'}, not fatal")


def _nvlink4(line: KernelLine, row: PolicyRow, policy: Policy, _branch: int | None) -> Verdict:
    """Most serious verdict of all bits that are set."""
    verdict_of = {(one.word, bit): one.verdict for one in policy.nvlink4 for bit in one.bits}
    found = {
        verdict_of.get((position, bit), "error")
        for position, word in enumerate(line.words, 1)
        for bit in range(32)
        if word >> bit & 1
    }
    if "service" in found:
        return Verdict(row.fault, Repair.MANUAL_REPAIR, "its registers ask for service of the link")
    if not found or "error" in found:
        return Verdict(row.fault, row.repair)
    if "go_on" in found:
        return Verdict(FaultClass.RECORD, Repair.NONE, "its registers show only a passed threshold")
    if "secondary" in found:
        return Verdict(FaultClass.RECORD, Repair.NONE, "its registers show an error at the other end of the link")
    return Verdict(FaultClass.RECORD, Repair.NONE, "its registers show no error")


def _nvlink5(line: KernelLine, row: PolicyRow, policy: Policy, branch: int | None) -> Verdict:
    if not line.words:
        return Verdict(row.fault, row.repair)
    first = _is_first_layout(line, branch)
    unit = _unit(line, policy, first)
    if unit is None:
        return Verdict(row.fault, row.repair, "a unit that this release does not know")
    named = line.unit or unit.unit
    if unit.by == "reason":
        value = line.words[0] >> 20 & 0x3F
        if value in unit.peer:
            return Verdict(
                FaultClass.RECORD, Repair.NONE, f"{named}: reason {value} is an error at the link's other end"
            )
        if value not in unit.reset and value not in unit.ignore and not unit.always:
            return Verdict(row.fault, row.repair, f"{named}: reason {value} is not known to this release")
    else:
        value = line.words[1] if len(line.words) > 1 else 0
    enabled = bool(line.words[0] >> (10 if first else 7) & 1) or not unit.reset_if
    return _nvlink5_outcome(named, unit, value, enabled, row)


def _nvlink5_outcome(named: str, unit: NvlinkUnit, value: int, enabled: bool, row: PolicyRow) -> Verdict:
    def has(values: tuple[int, ...]) -> bool:
        return value in values or (unit.by == "status" and any(bit & value for bit in values))

    if unit.always == "reset" or (has(unit.reset) and enabled):
        fault = row.fault if row.fault in (FaultClass.HARDWARE, FaultClass.DRAIN) else FaultClass.HARDWARE
        return Verdict(fault, Repair.RESET_GPU, f"{named}: its status {value:#x} needs a reset of the GPU")
    if has(unit.follow):
        why = f"{named}: its status {value:#x} leaves it to the driver's recovery action"
        return Verdict(FaultClass.APPLICATION, Repair.RESTART_APP, why)
    if unit.always == "ignore" or has(unit.ignore) or has(unit.reset):
        return Verdict(FaultClass.RECORD, Repair.NONE, f"{named}: its status {value:#x} may be ignored")
    return Verdict(row.fault, row.repair, f"{named}: its status {value:#x} is not known to this release")


def _is_first_layout(line: KernelLine, branch: int | None) -> bool:
    if branch is not None:
        return branch < V2_BRANCH
    return line.words[0] & 0x1F == (line.code or 0) - 143


def _unit(line: KernelLine, policy: Policy, first: bool) -> NvlinkUnit | None:
    """Unit by its name, which every driver prints; by its subcode if the name is not known."""
    units = [one for one in policy.nvlink5 if one.xid == line.code]
    named = [one for one in units if line.unit.startswith(one.unit)]
    subcode = line.words[0] >> 5 & 0x1F if first else line.words[0] & 0x7F
    return next(iter(named or [one for one in units if subcode in (one.v1 if first else one.v2)]), None)


_READ: dict[Decode, Callable[[KernelLine, PolicyRow, Policy, int | None], Verdict]] = {
    Decode.FLAGS: _flags,
    Decode.RECOVERY_ACTION: _recovery_action,
    Decode.SEVERITY: _severity,
    Decode.NVLINK4: _nvlink4,
    Decode.NVLINK5: _nvlink5,
}
