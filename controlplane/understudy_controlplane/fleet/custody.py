"""Whose node is it?

Slurm keeps no owner. A node has a state, flags and one reason, with the user and the time of its last writer. The
control plane drains nodes, and so do administrators and Slurm itself. Each may write over the reason of another. Slurm
adds words of its own to a reason, some versions leave it standing when the node is resumed, and slurmctld forgets the
last seconds in a crash. To act on a node that another holds is to undo a decision of a person.

The answer is one value, `Custody`, found in three steps:

1. `in_slurm`: what Slurm's record shows by itself. The reasons that Slurm gives are a table.
2. `custody_in`: whether a reason that begins as Understudy's is the one that the control plane gave. The prefix proves
   nothing; the user and the time that were read back do.
3. `custody_of`: what the control plane has done lately: a return that Slurm did not carry out, a drain that slurmctld
   has forgotten, a node that is reserved instead of drained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from understudy_controlplane.fleet.job import Refusal
from understudy_controlplane.fleet.node import (
    CLOCKS_APART_SECONDS,
    HELD_BY_OPERATOR,
    IN_REPAIR,
    OUT_OF_SERVICE,
    REASON_PREFIX,
    SLURM_SAVES_SECONDS,
    NodeRecord,
    NodeState,
    NodeView,
)
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, Recovery, ReturnPlan, StepName
from understudy_controlplane.fleet.slurm import NOT_RESPONDING, SLURM_USERS, Service, SlurmNode

if TYPE_CHECKING:  # it holds the answers for a whole fleet
    from understudy_controlplane.fleet.snapshot import Snapshot

PROLOG_DRAIN_SECONDS = 60.0
"""Slurm drains the node in the second in which the Prolog refused; the rest is for clocks that drift."""

CRASH_NOTICED_SECONDS = 60.0
"""Seconds after the start of slurmctld in which its first reading is expected."""


class Holder(StrEnum):
    FREE = "free"  # Slurm offers it to jobs, or would if it answered
    UNDERSTUDY = "understudy"  # out by the control plane's decision
    OPERATOR = "operator"  # out for a person who deals with it through the control plane: a hold, a ticket, for good
    ADMINISTRATOR = "administrator"  # out by a person, or another program, in Slurm
    SLURM = "slurm"  # out by Slurm itself, until a person resumes it


class Proof(StrEnum):
    IN_SERVICE = "in_service"  # Slurm shows no drain, FAIL or DOWN
    SILENCE = "silence"  # it is DOWN only because it does not answer, or did not for a time
    REASON = "reason"  # the holder's words
    OLD_REASON = "old_reason"  # Understudy's words, which the control plane has not given for what Slurm shows
    FAIL = "fail"  # administrators alone set it; Slurm may keep the reason of the drain in whose place it stands
    BOOT = "boot"  # it booted while Slurm did not expect it, or Slurm no longer waits until it has booted
    PROLOG = "prolog"  # Slurm drained it because Understudy's Prolog refused a job
    RETURN_REFUSED = "return_refused"  # Slurm has not lifted the control plane's drain
    RETURN_CANCELLED = "return_cancelled"  # the same, and an operator cancelled the return
    RETURN_LOST = "return_lost"  # the same: slurmctld lost in a crash that the node was resumed
    FORGOTTEN = "forgotten"  # slurmctld was restarted before it had surely saved the control plane's drain
    RECORD = "record"  # the control plane's decision: Slurm shows no drain yet, or a reservation in its place
    LIFTED = "lifted"  # it was drained, or reserved, and a person has ended that


@dataclass(frozen=True, slots=True)
class Custody:
    holder: Holder
    proven_by: Proof
    since: int = 0  # when the reason in Slurm was given, by slurmctld's clock; 0: Slurm shows none

    @property
    def by_others(self) -> bool:
        """The control plane leaves its drain and its reason as they are."""
        return self.holder in (Holder.ADMINISTRATOR, Holder.SLURM)

    @property
    def in_effect(self) -> bool:
        """Slurm shows the very reason that the control plane gave."""
        return self.holder in (Holder.UNDERSTUDY, Holder.OPERATOR) and self.proven_by is Proof.REASON


FREE = Custody(Holder.FREE, Proof.IN_SERVICE)

_AUTODETECTED = (
    "gres/%s GRES autodetected core affinity %s on node %s doesn't match socket boundaries. "
    "(Socket %d is cores %d-%d). "
)

SLURMS_REASONS: Mapping[str, Proof] = {
    # slurmctld (ping_nodes.c, node_mgr.c, power_save.c)
    NOT_RESPONDING: Proof.SILENCE,
    "Node unexpectedly rebooted": Proof.BOOT,
    "reboot timed out": Proof.BOOT,
    "ResumeTimeout reached": Proof.BOOT,
    # slurmctld, of what a node registers with (node_mgr.c, gres.c)
    "gres/%s count reported lower than configured (%d < %d)": Proof.REASON,
    "gres/%s count too low (%d < %d)": Proof.REASON,
    "gres/%s count changed and jobs are using them (%d != %d)": Proof.REASON,
    "gres/%s type changed and jobs are using them": Proof.REASON,
    "gres/%s type (%s) reported but not configured": Proof.REASON,
    _AUTODETECTED + "Consider setting SlurmdParameters=l3cache_as_socket (recommended) or override this by manually "
    "specifying core affinity in gres.conf.": Proof.REASON,
    _AUTODETECTED + "Consider setting Parameters=l3cache_as_socket as part of the Node configuration.": Proof.REASON,
    _AUTODETECTED + "See Socket Affinity section of gres.html for more information.": Proof.REASON,
    "gres/%s GRES core specification %s for node %s doesn't match socket boundaries. "
    "(Socket %d is cores %d-%d)": Proof.REASON,
    "Low RealMemory (reported:%d < %f%% of configured:%d)": Proof.REASON,
    "Low socket*core*thread count": Proof.REASON,
    "Low CPUs": Proof.REASON,
    "Low TmpDisk": Proof.REASON,
    "CoreSpec differ": Proof.REASON,
    "Could not unpack gres data": Proof.REASON,
    "Invalid GRES index (%d >= %d)": Proof.REASON,
    "Invalid GRES Links value (%s) on node %s: Link value '%d' < -2": Proof.REASON,
    "Invalid GRES Links value (%s) on node %s: end_ptr[0]='%s' != ','": Proof.REASON,
    "Invalid GRES Links value (%s) on node %s: i=%d >= link_len=%d.": Proof.REASON,
    "Reported active features (%s) are not a superset of currently active changeable features (%s)": Proof.REASON,
    "RestrictedCoresPerGPU=%d but no gpus on node %s": Proof.REASON,
    "RestrictedCoresPerGPU=%d but the gpus given don't have any topology on node %s.": Proof.REASON,
    "RestrictedCoresPerGPU: %s can't restrict %d core(s) per gpu. GPU %s(%d) doesn't have access to that many unique "
    "cores (%d).": Proof.REASON,
    "Failed to parse dynamic_conf nodeline": Proof.REASON,
    "Failed to set topology '%s'": Proof.REASON,
    "NO NETWORK ADDRESS FOUND": Proof.REASON,
    # slurmctld, of a job on the node (node_mgr.c, job_mgr.c, agent.c, proc_req.c, job_test.c)
    "Bad core count": Proof.REASON,
    "Prolog error": Proof.REASON,
    "Epilog error": Proof.REASON,
    "Prolog/Epilog failure": Proof.REASON,
    "Job env setup error": Proof.REASON,
    "Duplicate jobid": Proof.REASON,
    "batch job complete failure": Proof.REASON,
    # slurmd and slurmstepd, as root (step_terminate_monitor.c, mgr.c, cred_context.c, req.c)
    "Kill task failed": Proof.REASON,
    "Kill task failed (JobId=%d %s)": Proof.REASON,
    "Job step not running": Proof.REASON,
    "Job step not running (JobId=%d %s)": Proof.REASON,
    "SlurmdSpoolDir is full": Proof.REASON,
    "switch_g_job_postfini failed": Proof.REASON,
    "Failed to set node feature(s): '%s'": Proof.REASON,
    # plugins (acct_gather_energy/rapl; node_features/knl_cray, until 23.11)
    "Cannot collect energy data.": Proof.REASON,
    "Invalid KNL modes": Proof.REASON,
    "Node not found by capmc": Proof.REASON,
}
"""Reasons that Slurm gives by itself, from 22.05 to 26.05, as its source has them, and what they prove.

"Reboot ASAP", "reboot requested" and "POWER_DOWN_ASAP" are missing: Slurm writes them for a user who asked for that.
So is "Set in slurm.conf": an administrator wrote the state there.
"""

PROLOG_ERROR = "Prolog error"
"""Slurm's reason when a node's Prolog failed, of whichever site."""

ADDITIONS = ("reboot issued", "reboot complete")
"""Slurm writes these, and its own reasons, behind " : " after the reason that stands."""

_PRINTED = {"%s": r"\S*", "%d": r"-?\d+", "%f": r"[\d.]+", "%%": "%"}


def as_printed(form: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"%.", lambda one: _PRINTED[one[0]], re.escape(form)))


def _beginning(form: str) -> str:
    return form.partition("%")[0].rstrip(" (:='")


_BEGINNINGS = {_beginning(form): proof for form, proof in SLURMS_REASONS.items()}
_ONE = "|".join(as_printed(form).pattern for form in (*SLURMS_REASONS, *ADDITIONS))
_WHOLE = re.compile(rf"(?:{_ONE})(?:(?:, | : )(?:{_ONE}))*")
_ADDED = re.compile(rf" : {_WHOLE.pattern}$")

IN_SERVICE = frozenset(NodeState) - OUT_OF_SERVICE - {NodeState.FOREIGN_DRAIN}


def meaning(reason: str, user: str = "") -> Proof | None:
    """What a reason proves if it is Slurm's own; None: it is not. Slurm's beginning is enough where SlurmUser has
    signed it. Root may be a person, who goes on after words of Slurm's, and Slurm may have added to such a text: these
    have to be Slurm's as a whole.
    """
    if (user == SLURM_USERS[0] and " : " not in reason) or _WHOLE.fullmatch(reason):
        return next((proof for words, proof in _BEGINNINGS.items() if reason.startswith(words)), None)
    return None


def boot_given_up(reason: str) -> bool:
    """Slurm no longer waits for a boot that no administrator asked for. The node may come back all the same."""
    first, *added = reason.split(" : ")
    words = added if first.startswith(REASON_PREFIX) else [first]
    return any(meaning(one) is Proof.BOOT for one in words)


def in_slurm(slurm: SlurmNode) -> Custody:
    """Custody by Slurm's record alone. A reason with Understudy's prefix counts as the control plane's."""
    if not slurm.taken_out:
        return FREE
    at, proof = slurm.reason_at, meaning(slurm.reason, slurm.reason_user)
    if slurm.set_to_fail:
        return Custody(Holder.ADMINISTRATOR, Proof.FAIL, at)
    if slurm.reason.startswith(REASON_PREFIX):
        return Custody(Holder.UNDERSTUDY, Proof.REASON, at)
    unreachable = proof is Proof.SILENCE or not (slurm.reason or slurm.responding)
    if unreachable and not slurm.draining:
        return Custody(Holder.FREE, Proof.SILENCE, at)
    if proof is not None and slurm.reason_user in SLURM_USERS:
        return Custody(Holder.SLURM, proof, at)
    return Custody(Holder.ADMINISTRATOR, Proof.REASON, at)


def kept_down(slurm: SlurmNode) -> bool:
    """It answers, and Slurm keeps it DOWN, which is no one's decision: it was silent, or booted unexpectedly."""
    down = slurm.down and slurm.responding and not slurm.draining and slurm.service is not Service.AWAY
    proof = meaning(slurm.reason, slurm.reason_user)
    return down and slurm.reason_user in SLURM_USERS and proof in (Proof.SILENCE, Proof.BOOT)


def custody_in(slurm: SlurmNode, record: NodeRecord | None, planned: str = "") -> Custody:
    """Custody by Slurm's record and the control plane's. `planned`: the reason that a recovery gives the node."""
    shown = in_slurm(slurm)
    own = record if record is not None and record.state in OUT_OF_SERVICE else None
    if shown.holder is Holder.UNDERSTUDY:
        if own is not None and _gave(own, slurm):
            return replace(shown, holder=_holder(own))
        if planned and slurm.has_reason(planned):
            return shown
        return replace(shown, holder=Holder.ADMINISTRATOR, proven_by=Proof.OLD_REASON)
    if own is not None and shown.proven_by is Proof.BOOT:  # no one has decided that: it is out as before
        return replace(shown, holder=_holder(own))
    return shown


def _gave(record: NodeRecord, slurm: SlurmNode) -> bool:
    """True if the control plane gave the very reason that Slurm shows. Slurm adds words to it and renews its time, in a
    reboot and, from 23.02 on, when the node does not answer.
    """
    if record.state in IN_REPAIR or record.drained_at is None or not record.drain_user:
        return True  # Slurm's additions are expected, or nothing was read back yet
    same = (slurm.reason_user, slurm.reason_at) == (record.drain_user, record.drain_reason_at)
    return same or (slurm.reason_user in SLURM_USERS and _ADDED.search(slurm.reason) is not None)


def _holder(record: NodeRecord) -> Holder:
    return Holder.OPERATOR if record.state in HELD_BY_OPERATOR else Holder.UNDERSTUDY


def custody_of(snapshot: Snapshot, node: NodeView) -> Custody:
    """Custody by all that is known."""
    slurm, record = node.slurm, node.record
    if slurm is None:
        return FREE
    shown = custody_in(slurm, record)
    if shown.holder is Holder.FREE:
        return _free_in_slurm(snapshot, node, shown)
    proof = None
    if refusal_behind(snapshot, node) is not None:
        proof = Proof.PROLOG
    elif shown.proven_by is Proof.OLD_REASON and slurm.draining and record.state in IN_SERVICE:
        proof = _not_returned(snapshot, node, slurm)
    return shown if proof is None else replace(shown, holder=Holder.UNDERSTUDY, proven_by=proof)


def _free_in_slurm(snapshot: Snapshot, node: NodeView, shown: Custody) -> Custody:
    record, read_at = node.record, snapshot.slurm.read_at or 0.0
    out = record.state in OUT_OF_SERVICE
    if out and _may_be_forgotten(record, snapshot.slurm.slurmctld_started_at):
        return replace(shown, holder=_holder(record), proven_by=Proof.FORGOTTEN)
    if shown.proven_by is Proof.SILENCE or record.state in IN_SERVICE:
        return shown
    lifted = not out or (record.drained_at is not None and read_at > record.drained_at)
    if record.state in IN_REPAIR:
        lifted |= _was_reserved(snapshot.recovery_on(node.name), read_at)
        lifted &= f"{NODE_HOLD_PREFIX}{node.name}" not in snapshot.slurm.reservations
    return Custody(Holder.FREE, Proof.LIFTED) if lifted else Custody(_holder(record), Proof.RECORD)


def _was_reserved(recovery: Recovery | None, read_at: float) -> bool:
    """True if it was reserved for its repair and this reading of Slurm is newer."""
    if recovery is None:
        return True  # it was the first step of what has ended since
    step = recovery.step(StepName.HOLD_NODE)
    at = step.done_at if step is not None else None
    return at is not None and read_at > at


def _may_be_forgotten(record: NodeRecord, slurmctld_started_at: float | None) -> bool:
    """slurmctld was restarted before it had surely saved the control plane's drain. Then no administrator lifted it."""
    at = record.drained_at
    if at is None or record.drain_settled or slurmctld_started_at is None:
        return False
    if record.drained_under is not None:
        return record.drained_under != slurmctld_started_at  # that of another start has shown it, and no later one
    if record.drain_reason_at:
        return slurmctld_started_at >= record.drain_reason_at  # both by slurmctld's clock
    return slurmctld_started_at > at - CLOCKS_APART_SECONDS


def refusal_behind(snapshot: Snapshot, node: NodeView) -> Refusal | None:
    """The refusal by Understudy's Prolog for which Slurm drained the node; None: it is not drained, or for another
    reason. Slurm gives the same reason when a site's own Prolog fails.
    """
    slurm = node.slurm
    if slurm is None or not slurm.draining or slurm.set_to_fail or slurm.reason != PROLOG_ERROR:
        return None
    near = (
        one
        for one in snapshot.history.refusals
        if one.node == node.name
        and any(abs(slurm.reason_at - at) <= PROLOG_DRAIN_SECONDS for at in snapshot.refused_at(one))
    )
    return next(near, None)


def _not_returned(snapshot: Snapshot, node: NodeView, slurm: SlurmNode) -> Proof | None:
    """Why the node, which has returned to service, has the control plane's drain still; None: the drain is another."""
    if _was_not_lifted(snapshot, slurm, snapshot.history.returns_failed.get(node.name)):
        return Proof.RETURN_REFUSED
    if _came_back_in_a_crash(snapshot, node, slurm):
        return Proof.RETURN_LOST
    if _was_not_lifted(snapshot, slurm, snapshot.history.returns_cancelled.get(node.name)):
        return Proof.RETURN_CANCELLED
    return None


def _was_not_lifted(snapshot: Snapshot, slurm: SlurmNode, recovery: Recovery | None) -> bool:
    """`recovery`, which has failed or was cancelled, was to lift the very drain that Slurm still shows."""
    if recovery is None or not isinstance(recovery.plan, ReturnPlan):
        return False
    drained_at = recovery.plan.drained_at  # by slurmctld's clock, like the time of the reason
    same = drained_at > 0 and slurm.reason_at == drained_at
    return same or _is_from_before(snapshot, slurm, recovery.decided_at)


def _is_from_before(snapshot: Snapshot, slurm: SlurmNode, returned_at: float) -> bool:
    """True if the drain is older than the return of the node to service."""
    reason_at = min(slurm.reason_at, slurm.reason_at - snapshot.slurm.ahead_seconds)  # a clock may have been set since
    return reason_at <= returned_at or reason_at - snapshot.now > CLOCKS_APART_SECONDS  # both clocks were set back


def _came_back_in_a_crash(snapshot: Snapshot, node: NodeView, slurm: SlurmNode) -> bool:
    """True if it is drained since right after the crash, however long a pause has let it be: later an administrator may
    have drained it, and Slurm have kept the old reason.
    """
    lifted_at, ahead = snapshot.history.drains_lifted.get(node.name), snapshot.slurm.ahead_seconds
    if lifted_at is None or snapshot.slurm.slurmctld_started_at is None:
        return False
    started_at = snapshot.slurm.slurmctld_started_at - ahead
    if (node.out_since or snapshot.now) - started_at > CRASH_NOTICED_SECONDS:
        return False
    last_open_at = min(started_at, node.out_since or started_at)  # slurmctld may have crashed twice since
    lost = started_at - lifted_at > -CLOCKS_APART_SECONDS and last_open_at - lifted_at < SLURM_SAVES_SECONDS
    return lost and _is_from_before(snapshot, slurm, lifted_at)
