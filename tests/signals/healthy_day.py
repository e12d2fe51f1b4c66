"""A day on which nothing is broken, through the real detection: everything that is found is a false alarm.

What happens on it: gangs train with steps that vary, write checkpoints, evaluate, crash by their own fault, are started
again and end; agents are upgraded one after another, drivers and kernels node by node with a reboot, the control plane
twice; counters of links, memory and PCIe grow by what a healthy fleet has; processors, storage and disks are busy;
GPUs run into their power cap, and for moments into their temperature.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tests.signals.virtual_fleet import GPUS, Fleet, Gang
from tests.signals.virtual_node import VirtualNode, healthy_gpu, healthy_host
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.node import NodeState

TICK_SECONDS = 15.0
NVML_SECONDS = 30.0
"""Larger than an agent's, for speed. A reading is a moment's: a peak of heat is seen as often, in the share of time."""

GARBAGE_TICKS = 80
"""Python's collector of cycles would look through a whole fleet many times a tick; it is asked once in so many."""

HOUR = 3600.0
SPARES = 8
IDLE_SHARE = 0.04
USERS = 6

ACTING = frozenset(
    {Action.QUARANTINE, Action.DRAIN, Action.MOVE_GANG, Action.RESTART_GANG, Action.OPEN_BREAKER, Action.PAGE}
)


class HealthyDay(msgspec.Struct, frozen=True):
    nodes: int
    hours: float
    rank_days: float
    happened: dict[str, int]
    acting: dict[str, int]  # rule → decisions that act
    suspects: dict[str, int]  # rule → nodes made suspect
    unknown: dict[str, int]  # rule → nodes whose state became unknown, and known again
    recorded: dict[str, int]  # rule → recorded, and nothing follows


class Day:
    def __init__(self, folder: Path, nodes: int, seed: int = 1) -> None:
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.fleet = Fleet(folder, names, GPUS, NVML_SECONDS, spares={"count": SPARES})
        self.rng = np.random.default_rng(seed)
        self.happened: Counter[str] = Counter()
        self._later: list[tuple[float, Any]] = []
        self._upgraded_agents = 0
        self._evaluates_at: dict[int, float] = {}
        self._saves_at: dict[int, float] = {}
        self._ends_at: dict[int, float] = {}
        self._busy_until: dict[str, float] = {}
        self._rank_seconds = 0.0

    def run(self, hours: float, each_hour: Callable[[HealthyDay], None] = lambda _: None) -> HealthyDay:
        fleet, shown = self.fleet, 0
        for _ in range(2):
            fleet.tick(2.0)
        begun, ticks = fleet.now, 0
        while (passed := fleet.now - begun) < hours * HOUR:
            self._fill()
            self._gangs()
            self._counters()
            self._upgrade(passed, hours)
            for one in [one for one in self._later if one[0] <= fleet.now]:
                self._later.remove(one)
                one[1]()
            fleet.tick(TICK_SECONDS)
            if (ticks := ticks + 1) % GARBAGE_TICKS == 0:
                gc.collect()
            self._rank_seconds += TICK_SECONDS * sum(gang.world for gang in fleet.gangs)
            if passed // HOUR > shown:
                shown = int(passed // HOUR)
                each_hour(self._result(shown, fleet.decisions(begun)))
        return self._result(hours, fleet.decisions(begun))

    # -- gangs -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Users keep the fleet busy but for a few nodes."""
        fleet = self.fleet
        idle = [node for node in fleet.slurm.nodes() if node.base_state == "IDLE"]
        idle = [node for node in idle if not node.flags & {"DRAIN", "RESERVED", "COMPLETING"}]
        waiting = sum(job.node_count for job in fleet.slurm.jobs() if job.state == "PENDING")
        free = len(idle) - waiting - round(IDLE_SHARE * len(fleet.nodes))
        sizes = [size for size in (128, 64, 32, 16, 8, 4, 2) if size <= min(free, len(fleet.nodes) // 4)]
        if not sizes:
            return
        size = int(self.rng.choice(sizes[:3]))
        gang = fleet.submit(
            size,
            f"user{self.rng.integers(USERS)}",
            step_seconds=float(self.rng.uniform(6, 14)),
            marks_collectives=bool(self.rng.random() < 0.5),
            work_variation=float(self.rng.choice([0.0, 0.03, 0.1])),
            variation=float(self.rng.uniform(0.01, 0.05)),
        )
        gang.pace = {}
        self._start(gang)
        self._ends_at[gang.job_id] = fleet.now + float(self.rng.uniform(2, 20)) * HOUR
        self.happened["jobs started"] += 1

    def _start(self, gang: Gang) -> None:
        gang.paused_until = self.fleet.now + float(self.rng.uniform(30, 400))
        self._evaluates_at[gang.job_id] = self.fleet.now + float(self.rng.uniform(0.5, 2)) * HOUR
        self._saves_at[gang.job_id] = self.fleet.now + float(self.rng.uniform(600, 1800))

    def _gangs(self) -> None:
        fleet = self.fleet
        for gang in list(fleet.gangs):
            job = fleet.slurm.job(gang.job_id)
            if job is None or job.ended:
                fleet.gangs.remove(gang)
                continue
            if job.state != "RUNNING":
                continue
            if job.restart_count != gang.restart_count or job.nodes != gang.nodes:
                gang.restart_count, gang.nodes = job.restart_count, job.nodes
                gang.step = max(0, gang.step - int(self.rng.integers(0, 100)))
                self._start(gang)
                continue
            if fleet.now >= self._ends_at[gang.job_id]:
                fleet.gangs.remove(gang)
                self._end(gang, failed=bool(self.rng.random() < 0.3))
                continue
            if gang.section and fleet.now >= gang.paused_until:
                gang.section = ""
            if fleet.now >= self._evaluates_at[gang.job_id] and fleet.now >= gang.paused_until:
                self._evaluates_at[gang.job_id] = fleet.now + float(self.rng.uniform(1, 2)) * HOUR
                gang.paused_until = fleet.now + float(self.rng.uniform(120, 540))
                gang.section = "evaluation" if gang.job_id % 2 else ""
                self.happened["evaluations"] += 1
            elif fleet.now >= self._saves_at[gang.job_id] and fleet.now >= gang.paused_until:
                self._saves_at[gang.job_id] = fleet.now + 1800
                gang.paused_until = fleet.now + float(self.rng.uniform(15, 60))
                self.happened["checkpoints"] += 1
            elif self.rng.random() < TICK_SECONDS / (30 * HOUR):
                fleet.slurm.requeue_job(job.job_id)
                self.happened["restarts by users"] += 1

    def _end(self, gang: Gang, *, failed: bool) -> None:
        fleet = self.fleet
        if not failed:
            fleet.slurm.end(gang.job_id, "COMPLETED")
            self.happened["jobs ended"] += 1
            return
        kind = self.rng.integers(3)
        for name in gang.nodes if kind == 0 else gang.nodes[:1]:
            if kind == 2:
                text = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB"
            else:
                text = f"NVRM: Xid (PCI:0000:0{self.rng.integers(1, 9)}:00): {(31, 13)[kind]}, pid=7, name=python, x"
            fleet.nodes[name].log(text, fleet.now)
        self._later.append((fleet.now + 20, lambda: fleet.slurm.end(gang.job_id, "FAILED")))
        self.happened["jobs failed by their program"] += 1

    # -- what a healthy fleet shows ----------------------------------------------------------------------------------

    def _counters(self) -> None:
        names = list(self.fleet.nodes)
        for name in self.rng.choice(names, max(1, len(names) // 50), replace=False):
            node = self.fleet.nodes[name]
            gpu = int(self.rng.integers(GPUS))
            shown = node.gpus[gpu]
            kind = self.rng.integers(7)
            if kind == 0:
                node.set_gpu(gpu, pcie_replays=(shown.pcie_replays or 0) + int(self.rng.integers(1, 10)))
            elif kind == 1:
                node.set_gpu(gpu, nvlink_errors=(shown.nvlink_errors or 0) + int(self.rng.integers(1, 10)))
            elif kind == 2:
                node.set_gpu(gpu, ecc_corrected=(shown.ecc_corrected or 0) + int(self.rng.integers(1, 200)))
            elif kind == 3:
                port = node.ports[0]
                node.set_port(0, symbol_errors=(port.symbol_errors or 0) + int(self.rng.integers(1, 20)))
            elif kind == 4:
                hot = self.rng.choice([0x4, 0x24, 0x40])
                node.set_gpu(gpu, clock_event_reasons=int(hot), temperature_celsius=84)
                self._until(node, gpu, 60.0)
                self.happened["moments of heat"] += 1
            elif kind == 5:
                free = int(900 * 2**30 * self.rng.uniform(0.03, 0.6))
                node.host = replace(
                    node.host,
                    cpu_pressure_percent=float(self.rng.uniform(0, 95)),
                    io_pressure_percent=float(self.rng.uniform(0, 60)),
                    disks=[replace(disk, free_bytes=free) for disk in node.host.disks],
                )
            elif self.rng.random() < 0.1:
                node.nvml_silent_since = self.fleet.now
                self._later.append(
                    (self.fleet.now + TICK_SECONDS - 1, lambda node=node: setattr(node, "nvml_silent_since", None))
                )
                self.happened["driver busy for 15 s"] += 1

    def _until(self, node: VirtualNode, gpu: int, seconds: float) -> None:
        self._later.append((self.fleet.now + seconds, lambda: node.set_gpu(gpu, clock_event_reasons=0x4)))

    # -- upgrades ----------------------------------------------------------------------------------------------------

    def _upgrade(self, passed: float, hours: float) -> None:
        fleet, names = self.fleet, list(self.fleet.nodes)
        while self._upgraded_agents < len(names) * passed / (hours * HOUR):
            node = fleet.nodes[names[self._upgraded_agents]]
            self._upgraded_agents += 1
            if node.name not in self._busy_until:
                node.silent = True
                self._later.append((fleet.now + TICK_SECONDS, lambda node=node: node.restart_agent(fleet.now)))
                self.happened["agents upgraded"] += 1
        wanted = len(names) // 20 * passed / (hours * HOUR)
        if len(self._busy_until) < wanted:
            used = {name for gang in fleet.gangs for name in gang.nodes}
            spares = {name for one in fleet.slurm.reservations() for name in one.nodes}
            idle = [name for name in names if name not in {*used, *spares, *self._busy_until}]
            if idle:
                self._reboot(idle[int(self.rng.integers(len(idle)))])
        for half in (0.33, 0.66):
            if passed / (hours * HOUR) <= half < (passed + TICK_SECONDS) / (hours * HOUR):
                fleet.restart_control_plane()
                self.happened["control plane restarted"] += 1

    def _reboot(self, name: str) -> None:
        """An administrator drains, upgrades, reboots and resumes it."""
        fleet, node = self.fleet, self.fleet.nodes[name]
        self._busy_until[name] = fleet.now
        fleet.slurm.drain_by("admin", name, "new driver")
        self.happened["nodes upgraded with a reboot"] += 1

        def down() -> None:
            fleet.dead.add(name)

        def up() -> None:
            fleet.dead.discard(name)
            node.gpus = [healthy_gpu(name, index) for index in range(GPUS)]
            node.host = replace(healthy_host(), versions={"kernel": "6.8.0-50", "BIOS": "1.2"})
            node.boot(fleet.now, "580.95.05")

        self._later.append((fleet.now + 60, down))
        self._later.append((fleet.now + 300, up))
        self._later.append((fleet.now + 420, lambda: fleet.slurm.resume_node(name)))

    def _result(self, hours: float, decisions: list[dict[str, Any]]) -> HealthyDay:
        acting, suspects, unknown, recorded = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for one in decisions:
            rule, state, action = one["rule"], one["to_state"], Action(one["action"])
            if action in ACTING:
                acting[rule] += 1
            elif state == NodeState.SUSPECT.value:
                suspects[rule] += 1
            elif state == NodeState.UNKNOWN.value:
                unknown[rule] += 1
            elif action is Action.NOTHING and not state:
                recorded[rule] += 1
        return HealthyDay(
            nodes=len(self.fleet.nodes),
            hours=hours,
            rank_days=round(self._rank_seconds / 86_400, 1),
            happened=dict(sorted(self.happened.items())),
            acting=dict(acting),
            suspects=dict(suspects),
            unknown=dict(unknown),
            recorded=dict(recorded),
        )


def together(days: Sequence[HealthyDay]) -> HealthyDay:
    """What happened on several days, and what was found."""

    def total(name: str) -> dict[str, int]:
        counts = sum((Counter(getattr(day, name)) for day in days), Counter[str]())
        return dict(sorted(counts.items()))

    return HealthyDay(
        nodes=days[0].nodes,
        hours=sum(day.hours for day in days),
        rank_days=round(sum(day.rank_days for day in days), 1),
        happened=total("happened"),
        acting=total("acting"),
        suspects=total("suspects"),
        unknown=total("unknown"),
        recorded=total("recorded"),
    )


def healthy_day(
    folder: Path,
    nodes: int,
    hours: float,
    each_hour: Callable[[HealthyDay], None] = lambda _: None,
    seed: int = 1,
) -> HealthyDay:
    day = Day(folder, nodes, seed)
    gc.disable()
    try:
        return day.run(hours, each_hour)
    finally:
        gc.enable()
        day.fleet.close()
