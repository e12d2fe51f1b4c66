"""The repair ladder: which rung is next for a node, from its fault and from what was tried before. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from understudy_controlplane.config import Repair
from understudy_controlplane.fleet.finding import HardwareDetail, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.recovery import RecoveryKind, RepairAttempt, Rung
from understudy_controlplane.xid_policy import Repair as Asked

LADDER = tuple(Rung)

RUNGS = {
    Asked.NONE: Rung.RESTART_APP,
    Asked.RESTART_APP: Rung.RESTART_APP,
    Asked.RESET_GPU: Rung.RESET_GPU,
    Asked.REBOOT: Rung.REBOOT,
    Asked.MANUAL_REPAIR: Rung.MANUAL_REPAIR,
}
"""The rung that carries a repair out."""


def first_rung(incident: OpenIncident | None) -> Rung:
    """Rung on which the ladder begins: the one that the findings need, the highest of several; a reboot if they name
    none.
    """
    if incident is None:
        return Rung.REBOOT
    asked = incident.detail.repair if isinstance(incident.detail, HardwareDetail) else None
    first = RUNGS[asked] if asked is not None else Rung.REBOOT
    return max((first, *(RUNGS[later] for later in incident.asked)), key=LADDER.index)


def next_rung(
    incident: OpenIncident | None,
    attempts: Sequence[RepairAttempt],
    policy: Repair,
    *,
    mig: bool = False,
    replaces: bool = False,
) -> Rung:
    """Upwards only: never below the highest that was tried within the week. `attempts` are the node's own of it.
    `mig`: a reset would end the instances of its GPUs, which services make at boot. `replaces`: the provider may be
    asked for another node.
    """
    tried = [one.rung for one in attempts if one.rung is not None and _counts(one)]
    lowest = max(
        [LADDER.index(first_rung(incident)), *(LADDER.index(rung) for rung in tried if rung != Rung.MANUAL_REPAIR)]
    )
    for rung in LADDER[min(lowest, LADDER.index(Rung.REPLACE)) :]:
        most = int(replaces) if rung is Rung.REPLACE else _most(rung, policy, mig)
        if rung is Rung.MANUAL_REPAIR or tried.count(rung) < most:
            return rung
    return Rung.MANUAL_REPAIR


def _counts(attempt: RepairAttempt) -> bool:
    """A validation that follows a repair is no attempt of its own; without one before it, it stands for the rung."""
    return (
        attempt.kind is RecoveryKind.REPAIR
        or (attempt.kind is RecoveryKind.VALIDATE and attempt.rung is Rung.RESTART_APP)
        or attempt.rung is Rung.REPLACE
    )


def _most(rung: Rung, policy: Repair, mig: bool) -> int:
    if rung is Rung.RESTART_APP:
        return 1
    if rung is Rung.RESET_GPU:
        return policy.resets_max if policy.reset_command and not mig else 0
    return policy.reboots_max if policy.reboot else 0


def died(incident: OpenIncident | None) -> bool:
    """The node does not answer, so it cannot be rebooted."""
    return incident is not None and incident.signal == Signal.NODE_DEAD
