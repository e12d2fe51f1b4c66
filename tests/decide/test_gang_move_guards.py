"""Moves and restarts of gangs have guards of their own: a fault of the network is no fault of four hundred gangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.failures import Failures
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.decide.launcher_orders import launcher_orders, orders_of
from understudy_controlplane.decide.plans import launcher_restart_plan
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.hang import may_be_mass_hang
from understudy_controlplane.fleet.decision import Action, Because, Decision, Quarantine
from understudy_controlplane.fleet.finding import Finding, HangDetail, RequestDetail, Signal
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.incident import PORT_DOWN, OpenIncident
from understudy_controlplane.fleet.job import Attempt, Job, JobKey
from understudy_controlplane.fleet.node import DrainKind, NodeRecord, NodeState, NodeView
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    PoolSwapPlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import Interrupted, StepTable
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import NO_TOPOLOGY, Domain, DomainKind, merged
from understudy_wire.launcher import LauncherPhase, LauncherState

OUTAGE_SECONDS = 900.0


def jobs_of(gangs: int, size: int = 2) -> list[Job]:
    return [b.job(job_id=i, nodes=[f"n{i * size + seat + 1}" for seat in range(size)]) for i in range(gangs)]


def nodes_of(jobs: Sequence[Job]) -> list[NodeView]:
    return [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for job in jobs for name in job.slurm.nodes]


def steps_of(job: Job, still_seconds: float, *, named: bool = False) -> StepTable:
    """All ranks wait in one collective; with `named` the first has not come to it."""
    ranks = len(job.slurm.nodes)
    steps = b.step_table([[0.1] * 20] * ranks, nodes=job.slurm.nodes, advanced_at=b.NOW - still_seconds)
    inside = [True] * ranks
    sequences = [120] * ranks
    if named:
        inside[0], sequences[0] = False, 119
    return replace(
        steps,
        job=job.key,
        longest_pause_seconds=2.0,
        sequences=np.array(sequences, dtype=np.int64),
        inside=np.array(inside),
        furthest_collective="all_reduce",
    )


def fleet(jobs: Sequence[Job], still: Sequence[float], *, named: bool = False, **values: Any) -> Snapshot:
    """Gang i has stood still for still[i] seconds."""
    tables = {job.key: steps_of(job, seconds, named=named) for job, seconds in zip(jobs, still, strict=True)}
    return b.snapshot(*nodes_of(jobs), jobs=jobs, tables=tables, started_at=b.NOW - 100_000, **values)


def decided(snapshot: Snapshot, config: Config | None = None) -> list[Decision]:
    config = config or b.config()
    return decide(snapshot, detect(snapshot, config), config)


def moved(decisions: Sequence[Decision]) -> set[JobKey]:
    return {one.plan.job for one in decisions if isinstance(one.plan, PoolSwapPlan)}


def apart(gangs: int) -> list[float]:
    """Gangs that stopped one after the other, far enough apart to have nothing to do with each other."""
    return [OUTAGE_SECONDS + 300.0 * i for i in range(gangs)]


class TestManyGangsThatStopTogether:
    @pytest.mark.parametrize("named", [False, True])
    def test_a_fabric_outage_restarts_none_of_four_hundred(self, named: bool) -> None:
        jobs = jobs_of(400)
        snapshot = fleet(jobs, [OUTAGE_SECONDS + i / 40 for i in range(400)], named=named)
        decisions = decided(snapshot)
        assert [one for one in decisions if one.plan] == []
        together = [one for one in decisions if one.row == 106]
        assert len(together) == 400
        assert "400 gangs stopped at the same time" in together[0].reason

    @pytest.mark.parametrize("pause_seconds", [300.0, 500.0])
    def test_one_whose_own_limit_is_longer_counts_before_it_is_called_hung(self, pause_seconds: float) -> None:
        """It stands for longer than it ever paused."""
        jobs = jobs_of(3)
        snapshot = fleet(jobs, [OUTAGE_SECONDS] * 3)
        patient = {
            key: replace(table, longest_pause_seconds=pause_seconds) for key, table in snapshot.progress.tables.items()
        }
        tables = {**patient, jobs[0].key: snapshot.progress.tables[jobs[0].key]}
        assert [one.row for one in decided(b.changed(snapshot, tables=tables))] == [106, 70]

    @pytest.mark.parametrize(("stepped_seconds", "moves"), [(OUTAGE_SECONDS, False), (OUTAGE_SECONDS - 200, True)])
    def test_no_gang_is_restarted_before_others_show_whether_they_stopped_with_it(
        self, stepped_seconds: float, moves: bool
    ) -> None:
        """They are used to longer pauses. One that has made a step since then has not stopped."""
        jobs = jobs_of(3)
        snapshot = fleet(jobs, [OUTAGE_SECONDS, stepped_seconds, stepped_seconds])
        used_to = {
            key: replace(table, longest_pause_seconds=OUTAGE_SECONDS + 100)
            for key, table in snapshot.progress.tables.items()
        }
        tables = {**used_to, jobs[0].key: snapshot.progress.tables[jobs[0].key]}
        decisions = decided(b.changed(snapshot, tables=tables))
        assert [one.row for one in decisions] == [102 if moves else 106]

    @pytest.mark.parametrize(
        ("pause_seconds", "limits", "limit_seconds"),
        [(1200.0, {}, 1800.0), (2.0, {"seconds_min": 30, "first_step_seconds": 90}, 30.0)],
        ids=["long pauses", "short limits"],
    )
    def test_the_others_count_before_the_first_is_called_hung(
        self, pause_seconds: float, limits: dict[str, float], limit_seconds: float
    ) -> None:
        snapshot = fleet(jobs_of(3), [limit_seconds + 1, limit_seconds - 1, limit_seconds - 5])
        tables = {
            key: replace(one, longest_pause_seconds=pause_seconds) for key, one in snapshot.progress.tables.items()
        }
        decisions = decided(b.changed(snapshot, tables=tables), b.config(hang=limits))
        assert [one.row for one in decisions] == [106, 70]
        assert moved(decisions) == set()

    @pytest.mark.parametrize("state", ["SUSPENDED", "PENDING", "CANCELLED", "RUNNING", "COMPLETED"])
    @pytest.mark.parametrize(("stood_seconds", "moves"), [(400.0, False), (5.0, True)])
    def test_one_that_stood_when_it_was_interrupted_counts_until_it_makes_a_step(
        self, stood_seconds: float, moves: bool, state: str
    ) -> None:
        """A cause stays if one of its gangs is suspended, requeued or cancelled. A gang says nothing if it worked until
        then, or has completed: it did something else at the end.
        """
        resumed, moves = state == "RUNNING", moves or state == "COMPLETED"
        jobs = jobs_of(3)
        stopped_at = b.NOW - OUTAGE_SECONDS
        before = Interrupted(steps_of(jobs[2], OUTAGE_SECONDS), stopped_at + stood_seconds)
        seen = fleet(
            [*jobs[:2], b.job(job_id=2, nodes=jobs[2].slurm.nodes, state=state)],
            [OUTAGE_SECONDS] * 3,
            interrupted={jobs[2].key: before},
        )
        now = replace(steps_of(jobs[2], 0.0), advanced_at=0.0, heard_since=b.NOW - 1)
        tables = {key: table for key, table in seen.progress.tables.items() if key != jobs[2].key}
        decisions = decided(b.changed(seen, tables=tables | ({jobs[2].key: now} if resumed else {})))
        assert moved(decisions) == (set() if not moves else {jobs[0].key, jobs[1].key})
        together = {one.subject for one in decisions if one.row == 106}
        assert together == (set() if moves else {"job 0", "job 1"})

    @pytest.mark.parametrize("unheard_seconds", [0.0, OUTAGE_SECONDS - 20])
    def test_one_of_which_steps_may_be_lost_may_have_stopped_with_the_others(self, unheard_seconds: float) -> None:
        """Its agents were not heard. That it is not known to stand still makes the others no fewer."""
        seen = fleet(jobs_of(3), [OUTAGE_SECONDS] * 3)
        tables = dict(seen.progress.tables)
        last = jobs_of(3)[2].key
        tables[last] = replace(tables[last], unheard_seconds=unheard_seconds)
        assert moved(decided(b.changed(seen, tables=tables))) == set()

    def test_one_that_still_stands_after_it_was_resumed_stopped_with_the_others(self) -> None:
        jobs = jobs_of(3)
        before = Interrupted(steps_of(jobs[2], 9000.0), b.NOW - 8000)
        resumed = replace(steps_of(jobs[2], 0.0), advanced_at=0.0, heard_since=b.NOW - 2000)
        seen = fleet(jobs, [9000.0] * 3, interrupted={jobs[2].key: before})
        decisions = decided(b.changed(seen, tables={**seen.progress.tables, jobs[2].key: resumed}))
        assert [one.row for one in decisions][:4] == [106, 106, 106, 70]
        assert {one.row for one in decisions[4:]} == {92}, "a person is paged"
        assert moved(decisions) == set()

    @pytest.mark.parametrize(("others", "row"), [("PENDING", 100), ("standing since", 100), ("stand again", 106)])
    def test_a_new_attempt_that_stands_is_judged_by_its_own_stop(self, others: str, row: int) -> None:
        """Three had stopped together, and were requeued. Those that stand again together have one cause again."""
        jobs = jobs_of(3)
        before = {job.key: Interrupted(steps_of(job, 6000.0), b.NOW - 5000) for job in jobs}
        again = replace(steps_of(jobs[0], 0.0, named=True), attempt=Attempt(1), advanced_at=0.0)
        tables = {jobs[0].key: replace(again, heard_since=b.NOW - 1900)}
        if others == "PENDING":
            jobs = [jobs[0], *(b.job(job_id=job.key.job_id, nodes=(), state="PENDING") for job in jobs[1:])]
        elif others == "stand again":
            tables |= {job.key: replace(again, job=job.key, heard_since=b.NOW - 1850) for job in jobs[1:]}
        else:
            tables |= {job.key: steps_of(job, 6000.0) for job in jobs[1:]}
            before = {jobs[0].key: before[jobs[0].key]}
        nodes = nodes_of(jobs_of(3))
        seen = b.snapshot(*nodes, jobs=jobs, interrupted=before, tables=tables, started_at=b.NOW - 100_000)
        rows = {one.subject: one.row for one in decided(seen)}
        assert rows["job 0" if row == 106 else "n1"] == row
        if others == "standing since":
            assert (rows["job 1"], rows["job 2"]) == (106, 106), "that it stood with these counts for them still"

    def test_a_gang_that_stopped_twice_at_about_one_time_counts_once(self) -> None:
        """Two gangs are fewer than have one cause."""
        jobs = jobs_of(2)
        before, tables = {}, {}
        for job, stopped, again in zip(jobs, (2170.0, 2155.0), (2040.0, 2030.0), strict=True):
            before[job.key] = Interrupted(steps_of(job, stopped), b.NOW - again)
            new = replace(steps_of(job, 0.0), attempt=Attempt(1), advanced_at=0.0)
            tables[job.key] = replace(new, heard_since=b.NOW - again)
        seen = b.snapshot(*nodes_of(jobs), jobs=jobs, interrupted=before, tables=tables, started_at=b.NOW - 100_000)
        assert 106 not in {one.row for one in decided(seen)}

    def test_gangs_that_load_after_their_requeue_hold_back_nothing_that_others_need(self) -> None:
        """Three were requeued, as the message about them advises; the fourth stands still."""
        jobs = jobs_of(4)
        tables = {jobs[3].key: steps_of(jobs[3], OUTAGE_SECONDS)}
        before = {}
        for job in jobs[:3]:
            before[job.key] = Interrupted(steps_of(job, OUTAGE_SECONDS), b.NOW - 200)
            tables[job.key] = replace(steps_of(job, 0.0), attempt=Attempt(1), advanced_at=0.0, heard_since=b.NOW - 100)
        seen = b.snapshot(*nodes_of(jobs), jobs=jobs, interrupted=before, tables=tables, started_at=b.NOW - 100_000)
        assert not may_be_mass_hang(seen, b.config().hang)

    def test_gangs_that_were_moved_off_a_failed_switch_stopped_with_it(self) -> None:
        """They are no evidence for a cause of their own beside it."""
        jobs = jobs_of(4)
        fault = OpenIncident(
            1,
            Subject.of_domain("switch leaf0", PORT_DOWN),
            PORT_DOWN,
            "domain_fault",
            "6 nodes",
            b.NOW - OUTAGE_SECONDS + 25,
            nodes=tuple(f"n{i}" for i in range(1, 7)),
            fault_at=b.NOW - OUTAGE_SECONDS,
        )
        moved_to = [b.job(job_id=i, nodes=[f"m{i}-1", f"m{i}-2"]) for i in range(3)]
        before = {job.key: Interrupted(steps_of(job, OUTAGE_SECONDS), b.NOW - 500) for job in jobs[:3]}
        tables = {jobs[3].key: steps_of(jobs[3], OUTAGE_SECONDS - 5, named=True)}
        for job in moved_to:
            new = replace(steps_of(job, 0.0), attempt=Attempt(1), advanced_at=0.0)
            tables[job.key] = replace(new, heard_since=b.NOW - 100)
        seen = b.snapshot(
            *nodes_of([*jobs, *moved_to]),
            jobs=[*moved_to, jobs[3]],
            interrupted=before,
            tables=tables,
            incidents={fault.subject: fault},
            started_at=b.NOW - 100_000,
        )
        assert not any(isinstance(one.detail, HangDetail) for one in detect(seen, b.config()))

    @pytest.mark.parametrize(("state", "freezes"), [("SUSPENDED", True), ("RUNNING", True), ("PENDING", False)])
    def test_gangs_that_have_left_hold_back_nothing_that_others_need(self, state: str, freezes: bool) -> None:
        jobs = [b.job(job_id=job.key.job_id, nodes=job.slurm.nodes, state=state) for job in jobs_of(3)]
        before = {job.key: Interrupted(steps_of(job, 900.0), b.NOW - 100) for job in jobs}
        seen = b.snapshot(*nodes_of(jobs), jobs=jobs, interrupted=before, started_at=b.NOW - 100_000)
        if state == "RUNNING":
            tables = {job.key: replace(steps_of(job, 0.0), advanced_at=0.0, heard_since=b.NOW - 1) for job in jobs}
            seen = b.changed(seen, tables=tables)
        assert may_be_mass_hang(seen, b.config().hang) is freezes

    def test_gangs_that_go_on_do_not_count(self) -> None:
        snapshot = fleet(jobs_of(4), [OUTAGE_SECONDS, 1.0, 1.0, OUTAGE_SECONDS + 600])
        assert len(moved(decided(snapshot))) == 2

    def test_while_a_share_of_all_gangs_stands_only_what_is_proven_is_acted_on(self) -> None:
        slow = Finding(Signal.STRAGGLER_CONFIRMED, "straggler.clocks", "n9", b.NOW, "slow")
        broken = Finding(Signal.HARDWARE_FAULT, "xid.79", "n9", b.NOW, "fallen off the bus")
        asked = RequestDetail(request=1, verb=Verb.QUARANTINE)
        reported = Finding(Signal.FAULT_REPORTED, "operator.reported", "n9", b.NOW, "it smells", detail=asked)
        few, many = [1.0] * 9 + [OUTAGE_SECONDS] * 3, [1.0] * 5 + [OUTAGE_SECONDS] * 3
        for still, action, because in (
            (few, Action.QUARANTINE, Because.RULE),
            (many, Action.NOTHING, Because.MASS_HANG),
        ):
            jobs = [job for job in jobs_of(len(still) + 4) if "n9" not in job.slurm.nodes][: len(still)]
            snapshot = fleet(jobs, still)
            snapshot = replace(snapshot, nodes={**snapshot.nodes, "n9": b.node("n9")})
            proven = (Action.QUARANTINE, Because.RULE)
            for finding, expected in ((slow, (action, because)), (broken, proven), (reported, proven)):
                findings = [*detect(snapshot, b.config()), finding]
                (decision,) = [one for one in decide(snapshot, findings, b.config()) if one.subject == "n9"]
                assert (decision.action, decision.because) == expected

    @pytest.mark.parametrize(
        ("users", "nodes", "freezes"),
        [
            ("aaaa", "1 2 3 4", False),
            ("aaaab", "1 2 3 4 5", False),
            ("aabb", "1 2 3 4", True),
            ("abc", "1 2 3", True),
            ("abc", "1 1 1", False),
            ("abcd", "1 2 3 11", False),
        ],
        ids=["one user", "one and another's", "two users", "three", "one node", "one switch"],
    )
    def test_only_gangs_of_several_users_and_places_hold_back_what_others_need(
        self, users: str, nodes: str, freezes: bool
    ) -> None:
        """Further users train on, each with a gang of its own."""
        placed = [f"n{number}" for number in nodes.split()]
        of_users = enumerate(zip(users, placed, strict=True))
        jobs = [b.job(job_id=7 + i, nodes=(name,), user=user) for i, (user, name) in of_users]
        jobs.append(b.job(job_id=99, nodes=("n12",), user="z"))
        leaf = Domain(DomainKind.SWITCH, "leaf0", ("n1", "n2", "n3", "n11"))
        topology = merged([leaf]) if "11" in nodes else NO_TOPOLOGY
        snapshot = fleet(jobs, [OUTAGE_SECONDS] * len(users) + [1.0], topology=topology)
        found = [one.detail for one in detect(snapshot, b.config()) if isinstance(one.detail, HangDetail)]
        assert {one.mass for one in found} == {freezes}
        assert {one.user for one in found} == {users[0] if len(set(users)) == 1 else ""}

    def test_a_gang_that_stops_while_those_of_one_other_user_wait_is_judged_by_itself(self) -> None:
        jobs = [b.job(job_id=7 + i, nodes=(f"n{i}",), user="sweeper") for i in range(1, 5)]
        jobs.append(b.job(job_id=99, nodes=("n9", "n8"), user="z"))
        snapshot = fleet(jobs, [OUTAGE_SECONDS] * 5)
        signals = {one.job.job_id: one.signal for one in detect(snapshot, b.config()) if one.job is not None}
        assert {signals[8 + i] for i in range(4)} == {Signal.GANG_HUNG_TOGETHER}
        assert signals[99] is Signal.GANG_HUNG_UNNAMED

    def test_jobs_that_are_not_managed_do_not_count(self) -> None:
        jobs = [*jobs_of(2), *(b.job(managed=False, job_id=70 + i, nodes=(f"n{i}",)) for i in range(60, 64))]
        rows = [one.row for one in decided(fleet(jobs, [OUTAGE_SECONDS] * 6))]
        assert 106 not in rows


class TestBudgets:
    def test_no_more_gangs_are_restarted_at_once_than_the_budget_bears(self) -> None:
        decisions = decided(fleet(jobs_of(30), apart(30)))
        assert len(moved(decisions)) == b.config().guards.gang_moves_min
        held = [one for one in decisions if one.because is Because.MOVE_BUDGET]
        assert len(held) == 30 - b.config().guards.gang_moves_min
        assert all(one.plan is None for one in held)

    def test_it_is_a_share_of_a_large_fleet(self) -> None:
        config = b.config(guards={"gang_moves_share": 0.5, "gang_moves_per_hour_share": 0.5})
        assert len(moved(decided(fleet(jobs_of(30), apart(30)), config))) == 30

    def test_what_is_under_way_counts_until_its_processes_have_started(self) -> None:
        jobs = jobs_of(20)
        plans = [one.plan for one in decided(fleet(jobs[:10], apart(10))) if one.plan]
        for status, more in ((StepStatus.PLANNED, 0), (StepStatus.DONE, 2)):
            steps = (RecoveryStep(0, StepName.AWAIT_PROCESSES, status),)
            under_way = tuple(
                Recovery(i, plan, RecoveryStatus.RUNNING, b.NOW - 9, steps) for i, plan in enumerate(plans)
            )
            snapshot = fleet(jobs, [1.0] * 10 + apart(10), recoveries=under_way)
            config = b.config(guards={"gang_moves_per_hour_min": 12})
            recent = tuple((b.NOW - 9, plan.job) for plan in plans if isinstance(plan, PoolSwapPlan))
            assert len(moved(decided(b.changed(snapshot, swaps=recent), config))) == more

    def test_time_that_is_credited_after_a_launchers_own_restart_is_no_move(self) -> None:
        """Nothing is ordered: it uses up no budget, and a move of that gang is held back like any other."""
        jobs = jobs_of(20)
        quiet = fleet(jobs, [1.0] * 20)
        steps = (RecoveryStep(0, StepName.AWAIT_PROCESSES, StepStatus.PLANNED),)
        credits_ = tuple(
            Recovery(i, launcher_restart_plan(quiet, job, b.NOW - 9, 0, 5), RecoveryStatus.RUNNING, b.NOW - 9, steps)
            for i, job in enumerate(jobs)
        )
        hung = fleet(jobs, [1.0] * 10 + apart(10), recoveries=credits_)
        assert len(moved(decided(hung))) == b.config().guards.gang_moves_min

    def test_the_hour_has_a_budget_of_its_own(self) -> None:
        recent = tuple((b.NOW - 60 * i, JobKey(b.CLUSTER, 900 + i, 1)) for i in range(12))
        (decision,) = decided(fleet(jobs_of(1), [OUTAGE_SECONDS], swaps=recent))
        assert (decision.because, decision.plan) == (Because.MOVE_BUDGET, None)
        assert "12 gangs were moved or restarted within the hour" in decision.reason

    def test_so_has_a_domain_of_failure(self) -> None:
        jobs = jobs_of(16)
        domains = {"switch rack1": tuple(name for job in jobs[:7] for name in job.slurm.nodes)}
        decisions = decided(fleet(jobs, apart(8) + [1.0] * 8, domains=domains))
        assert len(moved(decisions) & {job.key for job in jobs[:7]}) == 4
        assert jobs[7].key in moved(decisions)
        held = next(one for one in decisions if one.because is Because.MOVE_BUDGET)
        assert "4 gangs of 7 with nodes in switch rack1 are" in held.reason

    def test_a_domain_that_is_most_of_the_fleet_has_the_fleets_budget(self) -> None:
        jobs = jobs_of(8)
        domains = {"partition train": tuple(name for job in jobs for name in job.slurm.nodes)}
        assert len(moved(decided(fleet(jobs, apart(8), domains=domains)))) == 8

    def test_of_a_gang_that_leaves_a_node_that_node_counts(self) -> None:
        """Gangs that span all racks do not share the fault of a rack because of that."""
        jobs = jobs_of(8, size=3)
        domains = {"switch rack1": tuple(job.slurm.nodes[1] for job in jobs)}
        assert len(moved(decided(fleet(jobs, apart(8), named=True, domains=domains)))) == 8

    def test_a_node_leaves_service_also_where_its_gang_may_not_be_moved(self) -> None:
        broken = b.node("n2", events=(b.xid_event("n2", 79),))
        recent = tuple((b.NOW - 60 * i, JobKey(b.CLUSTER, 900 + i, 1)) for i in range(12))
        (decision,) = decided(b.snapshot(broken, jobs=[b.job()], spares=("n7",), swaps=recent))
        assert (decision.action, decision.because) == (Action.QUARANTINE, Because.MOVE_BUDGET)
        assert decision.plan is not None
        assert decision.plan.steps == (StepName.DRAIN_NODES,)


class TestOtherGuards:
    @pytest.mark.parametrize(
        ("values", "guards", "because"),
        [
            ({"breaker": "eight at once"}, {}, Because.BREAKER),
            ({}, {"observe_rules": ["hang."]}, Because.RULE_DRY_RUN),
            ({"mode": Mode.OBSERVE}, {}, Because.DRY_RUN),
            ({"paused": "maintenance"}, {}, Because.PAUSED),
        ],
    )
    def test_hold_a_restart_back(self, values: dict[str, Any], guards: dict[str, Any], because: Because) -> None:
        (decision,) = decided(fleet(jobs_of(1), [OUTAGE_SECONDS], **values), b.config(guards=guards))
        assert (decision.action, decision.because, decision.plan) == (Action.NOTHING, because, None)

    @pytest.mark.parametrize(
        ("values", "guards", "because"),
        [
            ({"breaker": "eight at once"}, {}, Because.BREAKER),
            ({}, {"observe_rules": ["stranded."]}, Because.RULE_DRY_RUN),
            ({}, {"observe_rules": ["xid.79"]}, Because.RULE_DRY_RUN),
            ({}, {}, Because.RULE),
        ],
    )
    def test_hold_back_the_move_of_a_gang_from_a_node_that_is_out_of_service(
        self, values: dict[str, Any], guards: dict[str, Any], because: Because
    ) -> None:
        drained = b.slurm_node("n2", "ALLOCATED", ["DRAIN"], "understudy: x")
        record = NodeRecord("n2", NodeState.QUARANTINED, drain_kind=DrainKind.NOW, drained_at=b.NOW - 50)
        node = b.node("n2", record=record, slurm=drained)
        subject = Subject.of_node("n2")
        incidents = {subject: OpenIncident(1, subject, "xid.79", "hardware_fault", "broken", b.NOW - 60)}
        snapshot = b.snapshot(node, jobs=[b.job()], spares=("n7",), incidents=incidents, **values)
        (decision,) = decided(snapshot, b.config(guards=guards))
        assert (decision.row, decision.because) == (13, because)
        assert (decision.plan is None) is (because is not Because.RULE)

    def test_not_where_another_rule_that_acts_accuses_the_node_as_well(self) -> None:
        drained = b.slurm_node("n2", "ALLOCATED", ["DRAIN"], "understudy: x")
        record = NodeRecord("n2", NodeState.QUARANTINED, drain_kind=DrainKind.NOW, drained_at=b.NOW - 50)
        subject, accused_by = Subject.of_node("n2"), ("xid.48", "xid.79")
        stored = (*accused_by, "stranded.gang")  # from the second round on
        known = OpenIncident(1, subject, "xid.48", "hardware_fault", "broken", b.NOW - 60, accused_by=stored)
        node = b.node("n2", record=record, slurm=drained)
        snapshot = b.snapshot(node, jobs=[b.job()], spares=("n7",), incidents={subject: known})
        for rules, moves in ((["xid.48"], True), (["xid."], False)):
            (decision,) = decided(snapshot, b.config(guards={"observe_rules": rules}))
            assert (decision.row, decision.plan is not None) == (13, moves)

    def test_a_gang_that_is_on_its_way_gets_there_though_the_breaker_has_opened(self) -> None:
        """It does not run: to hold it back saves no one."""
        broken = b.node("n2", events=(b.xid_event("n2", 79),))
        (first,) = decided(b.snapshot(broken, jobs=[b.job()], spares=("n6", "n7")))
        assert first.plan is not None
        under_way = Recovery(41, first.plan, RecoveryStatus.RUNNING, b.NOW - 1, ())
        taken = b.node("n6", slurm=b.slurm_node("n6", flags=["DRAIN"], reason="NHC: disk", user="root"))
        snapshot = b.snapshot(
            b.node("n2", NodeState.QUARANTINED),
            taken,
            jobs=[b.job(state="PENDING", nodes=())],
            spares=("n7",),
            recoveries=(under_way,),
            breaker="eight at once",
            swaps=tuple((b.NOW - 60 * i, JobKey(b.CLUSTER, 900 + i, 1)) for i in range(12)),
        )
        finding = Finding(Signal.SEAT_LOST, "seats.lost", "n6", b.NOW, "taken", job=b.job().key)
        (decision,) = [one for one in decide(snapshot, [finding], b.config()) if one.subject == "n6"]
        assert isinstance(decision.plan, PoolSwapPlan)
        assert decision.plan.supersedes == 41


class TestAKnownBadNodeThatABudgetKeepsInService:
    """Its gang leaves it all the same."""

    BROKEN = b.node("n2", events=(b.xid_event("n2", 79),), slurm=b.slurm_node("n2", "ALLOCATED"))
    FULL: ClassVar[dict[str, Any]] = {"quarantined_at": {"n9": (b.NOW - 5,) * 12}}

    def scene(self, **values: Any) -> Snapshot:
        return b.snapshot(self.BROKEN, jobs=[b.job(excluded_nodes=("n5",))], spares=("n6", "n7"), **values)

    def test_the_gang_moves_and_cannot_come_back_to_it(self) -> None:
        (decision,) = decided(self.scene(**self.FULL))
        assert (decision.row, decision.action, decision.because) == (10, Action.MOVE_GANG, Because.HOURLY_BUDGET)
        assert (decision.to_state, decision.opens_incident) == (None, True)
        assert isinstance(decision.plan, PoolSwapPlan)
        assert (decision.plan.nodes, decision.plan.excluded) == ((), ("n2",))
        assert decision.plan.seats == ("n1", "n3", "n4", "n6")
        steps = decision.plan.steps
        assert steps.index(StepName.REQUEUE_JOB) < steps.index(StepName.EXCLUDE_NODES) < steps.index(StepName.START_JOB)

    @pytest.mark.parametrize(
        "values",
        [
            {"breaker": "eight at once"},
            {"mode": Mode.OBSERVE},
            {"paused": "maintenance"},
            {"quarantined_at": {f"n{i}": (b.NOW - 5,) for i in (3, 4, 5)}},
        ],
    )
    def test_not_where_another_guard_holds_the_quarantine_back(self, values: dict[str, Any]) -> None:
        assert [one.plan for one in decided(self.scene(**(self.FULL | values))) if one.plan] == []

    def test_nor_by_a_rule_that_only_observes(self) -> None:
        config = b.config(guards={"observe_rules": ["xid.79"]})
        assert [one.plan for one in decided(self.scene(**self.FULL), config) if one.plan] == []

    def test_nor_where_so_many_are_broken_that_the_breaker_opens(self) -> None:
        broken = [b.node(f"n{i}", events=(b.xid_event(f"n{i}", 79),)) for i in (3, 4, 5)]
        snapshot = b.snapshot(self.BROKEN, *broken, jobs=[b.job()], spares=("n6", "n7"), **self.FULL)
        decisions = decided(snapshot)
        assert [one.action for one in decisions if one.plan] == []
        assert any(one.action is Action.OPEN_BREAKER for one in decisions)

    def test_what_its_user_excludes_is_not_counted_as_an_exclusion_of_the_control_plane(self) -> None:
        snapshot = b.snapshot(self.BROKEN, jobs=[b.job(excluded_nodes=("n2",))], spares=("n6", "n7"), **self.FULL)
        (plan,) = [one.plan for one in decided(snapshot) if isinstance(one.plan, PoolSwapPlan)]
        assert (plan.excluded, plan.leaving) == ((), ("n2",))

    def test_it_is_moved_once(self) -> None:
        snapshot = self.scene(**self.FULL)
        (first,) = decided(snapshot)
        assert first.plan is not None
        under_way = Recovery(41, first.plan, RecoveryStatus.RUNNING, b.NOW - 1, ())
        (second,) = decided(replace(snapshot, recoveries=(under_way,)))
        assert (second.action, second.plan) == (Action.NOTHING, None)

    def test_a_node_that_fails_on_the_way_leaves_it_excluded(self) -> None:
        (first,) = decided(self.scene(**self.FULL))
        assert first.plan is not None
        under_way = Recovery(41, first.plan, RecoveryStatus.RUNNING, b.NOW - 1, ())
        worse = b.node("n3", events=(b.xid_event("n3", 79),))
        pending = b.job(state="PENDING", nodes=())
        snapshot = b.snapshot(self.BROKEN, worse, jobs=[pending], spares=("n7",), recoveries=(under_way,))
        (plan,) = [one.plan for one in decided(snapshot) if isinstance(one.plan, PoolSwapPlan)]
        assert (plan.nodes, plan.excluded, plan.seats) == (("n3",), ("n2",), ("n1", "n4", "n6", "n7"))

    def test_a_launcher_leaves_it_for_a_spare_of_its_own(self) -> None:
        state = LauncherState(7, 0, 2, LauncherPhase.RUNNING, ("n1", "n2", "n3"), ("n4",), nodes_min=3)
        snapshot = self.scene(gangs={b.job().key: Gang(state, "n1", b.NOW - 1)}, **self.FULL)
        (decision,) = decided(snapshot)
        plan = b.plan_as(AllocationSwapPlan, decision.plan)
        assert (plan.nodes, plan.leaving, plan.launch) == ((), ("n2",), 2)
        sent = (RecoveryStep(1, StepName.ORDER_RESTART, StepStatus.INTENDED),)
        under_way = Recovery(41, plan, RecoveryStatus.RUNNING, b.NOW - 1, sent)
        orders = launcher_orders(replace(snapshot, recoveries=(under_way,)), b.config(), Failures(b.NOW))
        assert orders == {7: orders_of(plan)}
        assert list(orders_of(plan).bad) == ["n2"]
        (again,) = decided(replace(snapshot, recoveries=(under_way,)))
        assert again.plan is None

    def test_a_dead_node_is_left_to_slurm(self) -> None:
        """A job is only requeued from it if it is declared down."""
        dead = b.node("n2", heard_at=b.NOW - 9, slurmd_silent_since=b.NOW - 4)
        (decision,) = decided(b.snapshot(dead, jobs=[b.job()], spares=("n6",), **self.FULL))
        assert (decision.because, decision.plan) == (Because.HOURLY_BUDGET, None)


def test_a_large_gang_may_be_moved_more_often() -> None:
    """A gang of 12,500 nodes fails twice an hour, and ten times in a bad one."""
    for nodes, because in ((8, Because.JOB_BUDGET), (4000, Because.RULE)):
        job = b.job(nodes=[f"n{i}" for i in range(1, nodes + 1)])
        views = [b.node(name, slurm=b.slurm_node(name, "ALLOCATED")) for name in job.slurm.nodes]
        broken = b.node("n2", events=(b.xid_event("n2", 79),))
        spare = b.node("spare", is_spare=True)
        swaps = tuple((b.NOW - 60 * i, job.key) for i in range(1, 8))
        snapshot = b.snapshot(*views, broken, spare, jobs=[job], swaps=swaps)
        (decision,) = [one for one in decided(snapshot) if one.subject == "n2"]
        assert decision.because is because


class TestAMoveThatAnOperatorCancelled:
    JOB = b.job()

    def planned(self, finding: Finding, *cancelled: PoolSwapPlan, reached: int = -1) -> Decision:
        table = b.step_table([[0.1] * (reached + 1)] * 4, nodes=self.JOB.slurm.nodes)
        known = tuple(
            Recovery(
                41,
                one,
                RecoveryStatus.CANCELLED,
                b.NOW - 86400,
                (),
                ended_at=b.NOW - 86000,
                outcome="cancelled by alice",
            )
            for one in cancelled
        )
        tables = {self.JOB.key: replace(table, job=self.JOB.key)} if reached >= 0 else {}
        snapshot = b.snapshot(jobs=[self.JOB], spares=("n7", "n8"), cancelled=known, tables=tables)
        (decision,) = [one for one in decide(snapshot, [finding], b.config()) if one.subject != "fleet"]
        return decision

    def plan(self, finding: Finding) -> PoolSwapPlan:
        return b.plan_as(PoolSwapPlan, self.planned(finding).plan)

    def hang(self) -> Finding:
        return Finding(Signal.GANG_HUNG_UNNAMED, "hang", "", b.NOW - 6000, "no step", job=self.JOB.key)

    def fault(self, node: str) -> Finding:
        return Finding(Signal.HARDWARE_FAULT, "gpu.lost", node, b.NOW - 1, "GPU lost")

    def test_is_not_repeated(self) -> None:
        for finding in (self.hang(), self.fault("n3")):
            assert self.planned(finding, self.plan(finding)).because is Because.CANCELLED

    def test_one_out_of_a_hang_holds_back_neither_another_fault_nor_a_hang_after_further_steps(self) -> None:
        cancelled = self.plan(self.hang())
        assert isinstance(self.planned(self.fault("n3"), cancelled).plan, PoolSwapPlan)
        assert isinstance(self.planned(self.hang(), cancelled, reached=20).plan, PoolSwapPlan)

    def test_one_for_a_fault_holds_back_no_hang_and_no_other_node(self) -> None:
        cancelled = self.plan(self.fault("n3"))
        assert isinstance(self.planned(self.hang(), cancelled).plan, PoolSwapPlan)
        assert isinstance(self.planned(self.fault("n2"), cancelled).plan, PoolSwapPlan)

    def test_one_for_a_fault_holds_back_a_hang_that_waits_for_just_that_node(self) -> None:
        """It would move the gang off it all the same."""
        hang = Finding(Signal.GANG_HUNG, "hang", "n3", b.NOW - 6000, "no step", job=self.JOB.key)
        assert self.planned(hang, self.plan(self.fault("n3"))).because is Because.CANCELLED

    def test_for_a_fault_holds_back_no_move_for_what_another_rule_finds_there_later(self) -> None:
        dead = Finding(Signal.NODE_DEAD, "silence.node_dead", "n3", b.NOW - 9, "dead")
        assert isinstance(self.planned(dead, self.plan(self.fault("n3"))).plan, PoolSwapPlan)
        before = replace(dead, at=b.NOW - 86300)
        assert self.planned(before, self.plan(self.fault("n3"))).because is Because.CANCELLED

    def test_away_from_a_node_that_a_budget_keeps_in_service_is_not_repeated_either(self) -> None:
        cancelled = msgspec.structs.replace(self.plan(self.fault("n3")), nodes=(), leaving=("n3",))
        assert self.planned(self.fault("n3"), cancelled).because is Because.CANCELLED


class TestAPartitionThatIsDown:
    @staticmethod
    def lose(partition: str, states: dict[str, str], *, dead: bool = False, **changes: Any) -> Decision:
        """A node of the gang on n1 to n4 loses a GPU, or dies. There is a spare."""
        job = b.job(partition=partition, **changes)
        died: dict[str, Any] = {"heard_at": b.NOW - 60, "slurmd_silent_since": b.NOW - 50}
        node = b.node(
            "n3",
            slurm=b.slurm_node("n3", "ALLOCATED"),
            **(died if dead else {"events": (b.xid_event("n3", 79),)}),
        )
        snapshot = b.snapshot(node, jobs=[job], spares=["n8"], partition_states=states)
        return next(one for one in decided(snapshot) if one.subject == "n3")

    @pytest.mark.parametrize("state", ["DOWN", "INACTIVE"])
    def test_a_gang_that_runs_stays_where_it_is(self, state: str) -> None:
        decision = self.lose("train", {"train": state})
        assert (decision.action, decision.because) == (Action.QUARANTINE, Because.PARTITION_DOWN)
        assert not isinstance(decision.plan, PoolSwapPlan)
        assert f"job 7 stays where it is, because Slurm starts no job in partition train, which is {state}" in (
            decision.reason
        )

    @pytest.mark.parametrize(
        ("partition", "states"),
        [
            ("train", {"train": "UP"}),
            ("train", {"train": "DRAIN"}),
            ("train", {"other": "DOWN"}),
            ("train", {}),
            ("train,other", {"train": "UP", "other": "DOWN"}),
        ],
    )
    def test_it_moves_where_slurm_starts_it(self, partition: str, states: dict[str, str]) -> None:
        assert isinstance(self.lose(partition, states).plan, PoolSwapPlan)

    def test_a_gang_that_has_lost_a_node_has_nothing_to_lose(self) -> None:
        assert isinstance(self.lose("train", {"train": "DOWN"}, dead=True).plan, PoolSwapPlan)

    def test_a_gang_that_failed_by_itself_has_nothing_to_lose(self) -> None:
        failed = self.lose("train", {"train": "DOWN"}, state="COMPLETING", reason="NonZeroExitCode")
        assert failed.because is not Because.PARTITION_DOWN


class TestARuleOverItsBudget:
    """It may be wrong, and no gang is moved for it. One that is ended anyway does not start on its nodes again."""

    TAKEN = tuple(Quarantine(b.NOW - 4000 + i, f"n{i + 10}", "xid.79") for i in range(12))
    CONFIG = b.config(guards={"breaker_nodes_min": 50}, spares={"no_spare": "wait"})
    ACCUSED = b.node("n2", events=(b.xid_event("n2", 79),))
    HANG = Finding(Signal.GANG_HUNG_UNNAMED, "hang.gang", "", b.NOW - 600, "no step has ended", job=b.job().key)

    def plans(self, *more: Finding, spares: Sequence[str], node: NodeView | None = None) -> list[PoolSwapPlan]:
        nodes = (self.ACCUSED, *((node,) if node is not None else ()))
        seen = b.snapshot(*nodes, jobs=[b.job()], spares=spares, quarantines=self.TAKEN)
        found = decide(seen, [*detect(seen, self.CONFIG), *more], self.CONFIG)
        return [one.plan for one in found if isinstance(one.plan, PoolSwapPlan)]

    def test_moves_no_gang_by_itself(self) -> None:
        assert self.plans(spares=("n6",)) == []

    @pytest.mark.parametrize(("spares", "seats"), [(("n6",), {"n1", "n3", "n4", "n6"}), ((), {"n1", "n2", "n3", "n4"})])
    def test_a_gang_that_is_restarted_leaves_it_where_there_is_a_spare(
        self, spares: tuple[str, ...], seats: set[str]
    ) -> None:
        (plan,) = self.plans(self.HANG, spares=spares)
        assert (set(plan.seats), plan.nodes) == (seats, ())

    @pytest.mark.parametrize(
        ("spares", "seats"), [(("n6", "n7"), {"n1", "n4", "n6", "n7"}), (("n6",), {"n1", "n2", "n4", "n6"})]
    )
    def test_a_gang_that_is_moved_for_another_node_leaves_it_too(
        self, spares: tuple[str, ...], seats: set[str]
    ) -> None:
        (plan,) = self.plans(spares=spares, node=b.node("n3", events=(b.xid_event("n3", 64),)))
        assert (set(plan.seats), plan.nodes) == (seats, ("n3",))
