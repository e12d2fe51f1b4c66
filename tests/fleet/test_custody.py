"""Custody of a node for what Slurm shows of it: states and flags of 22.05 to 26.05, and the reasons in its source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import REPOSITORY
from tests import builders as b
from understudy_controlplane.fleet.custody import (
    ADDITIONS,
    Holder,
    Proof,
    boot_given_up,
    custody_in,
    in_slurm,
)
from understudy_controlplane.fleet.node import NodeRecord, NodeState
from understudy_controlplane.fleet.slurm import Service, SlurmNode

OWN, OTHERS = "understudy: xid.79: GPU lost", "board swap"
FREE, UNDERSTUDY, OPERATOR, ADMINISTRATOR, SLURM = Holder


REASONS = (REPOSITORY / "tests" / "data" / "world" / "slurm" / "drain-reasons.txt").read_text(encoding="utf-8")
BY_SLURM = [one.partition(": ")[2] for one in REASONS.splitlines() if not one.startswith("#")]


def shown(state: str, reason: str = "", user: str = "", at: int = 0) -> SlurmNode:
    """Node with a state as `scontrol show node` prints it: "IDLE+DRAIN"."""
    base, *flags = state.split("+")
    return replace(b.slurm_node("n1", base, flags, reason, user), reason_at=at)


@pytest.mark.parametrize(
    ("state", "service", "holder"),
    [
        ("IDLE", Service.USABLE, FREE),
        ("ALLOCATED", Service.USABLE, FREE),
        ("MIXED", Service.USABLE, FREE),
        ("ALLOCATED+COMPLETING", Service.USABLE, FREE),
        ("IDLE+PLANNED", Service.USABLE, FREE),
        ("IDLE+RESERVED", Service.USABLE, FREE),
        ("IDLE+BLOCKED", Service.USABLE, FREE),
        ("IDLE+CLOUD", Service.USABLE, FREE),
        ("IDLE+DYNAMIC_NORM", Service.USABLE, FREE),
        ("IDLE+EXTERNAL", Service.AWAY, FREE),
        ("IDLE+NOT_RESPONDING", Service.SILENT, FREE),
        ("DOWN+NOT_RESPONDING", Service.SILENT, FREE),
        ("UNKNOWN", Service.DOWN, FREE),
        ("ERROR", Service.DOWN, FREE),
        ("IDLE+MAINTENANCE", Service.AWAY, FREE),
        ("IDLE+MAINT", Service.AWAY, FREE),
        ("IDLE+POWER_DOWN", Service.AWAY, FREE),
        ("IDLE+POWERING_DOWN", Service.AWAY, FREE),
        ("IDLE+CLOUD+POWERED_DOWN", Service.AWAY, FREE),
        ("IDLE+POWER_UP", Service.AWAY, FREE),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", Service.AWAY, FREE),
        ("ALLOCATED+REBOOT_REQUESTED", Service.AWAY, FREE),
        ("FUTURE", Service.AWAY, FREE),
        ("IDLE+DRAIN", Service.DRAINING, ADMINISTRATOR),
        ("IDLE+DRAIN+INVALID_REG", Service.DRAINING, ADMINISTRATOR),
        ("ALLOCATED+FAIL", Service.DRAINING, ADMINISTRATOR),
        ("DOWN", Service.DOWN, ADMINISTRATOR),
        ("DOWN+DRAIN", Service.DOWN, ADMINISTRATOR),
        ("DOWN+DRAIN+NOT_RESPONDING", Service.SILENT, ADMINISTRATOR),
        ("IDLE+DRAIN+MAINTENANCE", Service.AWAY, ADMINISTRATOR),
        ("DOWN+DRAIN+REBOOT_ISSUED", Service.AWAY, ADMINISTRATOR),
    ],
)
def test_states_and_flags_say_what_slurm_would_do_and_whether_the_node_is_free(
    state: str, service: Service, holder: Holder
) -> None:
    assert (shown(state).service, in_slurm(shown(state)).holder) == (service, holder)


@pytest.mark.parametrize(
    ("state", "reason", "user", "holder", "proof"),
    [
        ("IDLE+DRAIN", OTHERS, "alice", ADMINISTRATOR, Proof.REASON),
        ("IDLE+DRAIN", "NHC: disk full", "root", ADMINISTRATOR, Proof.REASON),
        ("IDLE+DRAIN", "Reboot ASAP", "root", ADMINISTRATOR, Proof.REASON),
        ("IDLE+DRAIN", "POWER_DOWN_ASAP", "root", ADMINISTRATOR, Proof.REASON),
        ("DOWN", "Set in slurm.conf", "slurm", ADMINISTRATOR, Proof.REASON),
        ("DOWN", "reboot requested", "root", ADMINISTRATOR, Proof.REASON),
        ("DOWN", "kernel update : reboot timed out", "slurm", ADMINISTRATOR, Proof.REASON),
        ("DOWN+DRAIN+NOT_RESPONDING", f"{OTHERS} : Not responding", "slurm", ADMINISTRATOR, Proof.REASON),
        ("DOWN+NOT_RESPONDING", OTHERS, "alice", ADMINISTRATOR, Proof.REASON),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurm", FREE, Proof.SILENCE),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurmadm", FREE, Proof.SILENCE),
        ("IDLE+DRAIN", OWN, "root", UNDERSTUDY, Proof.REASON),
        ("DOWN", f"{OWN} : reboot timed out", "slurm", UNDERSTUDY, Proof.REASON),
        ("IDLE+FAIL", OWN, "root", ADMINISTRATOR, Proof.FAIL),
        ("IDLE", OWN, "root", FREE, Proof.IN_SERVICE),  # left standing when it was resumed
    ],
)
def test_a_reason_shows_who_took_the_node_out(state: str, reason: str, user: str, holder: Holder, proof: Proof) -> None:
    found = in_slurm(shown(state, reason, user))
    assert (found.holder, found.proven_by) == (holder, proof)


class TestOwnDrain:
    RECORD = b.record("n1", NodeState.QUARANTINED, drained_at=b.NOW - 90, drain_user="root", drain_reason_at=1000)

    @pytest.mark.parametrize(
        ("state", "holder"),
        [
            (NodeState.QUARANTINED, UNDERSTUDY),
            (NodeState.REPAIRING, UNDERSTUDY),
            (NodeState.MANUAL_REPAIR, OPERATOR),
            (NodeState.OPERATOR_HOLD, OPERATOR),
            (NodeState.RETIRED, OPERATOR),
            (NodeState.IN_SERVICE, ADMINISTRATOR),
            (NodeState.FOREIGN_DRAIN, ADMINISTRATOR),
        ],
    )
    def test_the_record_says_for_whom_the_node_is_drained(self, state: NodeState, holder: Holder) -> None:
        record = replace(self.RECORD, state=state)
        assert custody_in(shown("IDLE+DRAIN", OWN, "root", 1000), record).holder is holder

    @pytest.mark.parametrize(("user", "at"), [("root", 1007), ("alice", 1000)])
    def test_the_prefix_proves_nothing_where_user_or_time_are_not_those_read_back(self, user: str, at: int) -> None:
        found = custody_in(shown("IDLE+DRAIN", OWN, user, at), self.RECORD)
        assert (found.holder, found.proven_by) == (ADMINISTRATOR, Proof.OLD_REASON)

    @pytest.mark.parametrize("words", [*ADDITIONS, *BY_SLURM])
    def test_what_slurm_adds_to_the_reason_does_not_change_whose_it_is(self, words: str) -> None:
        """It renews the time, and the user is SlurmUser: `set_node_reason` of 23.02, in 22.05 around a reboot."""
        for record in (self.RECORD, replace(self.RECORD, state=NodeState.OPERATOR_HOLD)):
            added = shown("DOWN+DRAIN", f"{OWN} : {words}", "slurm", 2000)
            assert not custody_in(added, record).by_others
            assert custody_in(replace(added, reason_user="alice"), record).by_others
            assert custody_in(
                replace(added, reason=f"{added.reason}, so it is mine (Bob)", reason_user="root"), record
            ).by_others

    def test_what_a_recovery_is_about_to_give_is_its_own(self) -> None:
        drained = shown("IDLE+DRAIN", OWN, "root", 1000)
        assert custody_in(drained, None, planned=OWN).holder is UNDERSTUDY
        assert custody_in(replace(drained, reason=f"{OWN} : Not responding"), None, planned=OWN).holder is UNDERSTUDY
        assert custody_in(drained, None, planned="understudy: xid.48: another").by_others
        assert custody_in(shown("IDLE+FAIL", OWN, "root", 1000), None, planned=OWN).by_others

    @pytest.mark.parametrize("state", [NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.OPERATOR_HOLD])
    def test_a_boot_that_slurm_did_not_expect_gives_the_node_to_no_one_else(self, state: NodeState) -> None:
        booted = shown("DOWN", "Node unexpectedly rebooted", "slurm", 2000)
        assert not custody_in(booted, replace(self.RECORD, state=state)).by_others
        assert custody_in(booted, b.record("n1")).holder is SLURM


@pytest.mark.parametrize(
    ("record", "node", "more", "holder", "proof"),
    [
        (b.record("n1"), shown("IDLE"), {}, FREE, Proof.IN_SERVICE),
        (b.record("n1", NodeState.FOREIGN_DRAIN), shown("IDLE"), {}, FREE, Proof.LIFTED),
        (b.record("n1", NodeState.QUARANTINED), shown("IDLE"), {}, UNDERSTUDY, Proof.RECORD),
        (b.record("n1", NodeState.OPERATOR_HOLD), shown("IDLE"), {}, OPERATOR, Proof.RECORD),
        (TestOwnDrain.RECORD, shown("IDLE"), {}, FREE, Proof.LIFTED),
        (TestOwnDrain.RECORD, shown("IDLE"), {"read_at": b.NOW - 90}, UNDERSTUDY, Proof.RECORD),
        (TestOwnDrain.RECORD, shown("IDLE"), {"slurmctld_started_at": 1000.0}, UNDERSTUDY, Proof.FORGOTTEN),
        (TestOwnDrain.RECORD, shown("IDLE"), {"slurmctld_started_at": 999.0}, FREE, Proof.LIFTED),
        (TestOwnDrain.RECORD, shown("DOWN", "Not responding", "slurm"), {}, FREE, Proof.SILENCE),
        (
            b.record("n1", NodeState.VALIDATING),
            shown("IDLE"),
            {"reservations": b.kept("n1")},
            UNDERSTUDY,
            Proof.RECORD,
        ),
        (b.record("n1", NodeState.VALIDATING), shown("IDLE"), {}, FREE, Proof.LIFTED),
    ],
)
def test_a_node_that_slurm_offers_to_jobs_is_judged_by_what_the_control_plane_did(
    record: NodeRecord, node: SlurmNode, more: dict[str, Any], holder: Holder, proof: Proof
) -> None:
    seen = b.snapshot(b.node("n1", slurm=node, record=record), **{"slurmctld_started_at": None, **more})
    assert (seen.custody("n1").holder, seen.custody("n1").proven_by) == (holder, proof)


@pytest.mark.parametrize(
    ("reason", "given_up"),
    [
        (f"{OWN} : reboot issued : reboot timed out", True),
        ("Node unexpectedly rebooted", True),
        (f"{OWN} : Not responding", False),
        ("kernel update : reboot timed out", False),
        (f"{OWN} : reboot timed out, leave it to me (Bob)", False),
        ("reboot timed out, leave it to me (Bob)", False),
        (OWN, False),
    ],
)
def test_slurm_gives_up_waiting_for_a_boot_of_the_control_plane_and_of_no_administrator(
    reason: str, given_up: bool
) -> None:
    assert boot_given_up(reason) is given_up
