"""A whole control plane on a fake Slurm and a virtual clock: minutes pass in milliseconds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import Recovery, RecoveryKind, RecoveryStatus
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.loop import IDLE_TICK_SECONDS
from understudy_controlplane.slurm.protocol import SlurmError
from understudy_wire.hardware import Gpu, StuckProcess
from understudy_wire.messages import Report
from understudy_wire.ranks import RankWindow

NODES = tuple(f"n{i}" for i in range(1, 9))
TICK_SECONDS = 0.2
PATIENT_TICK_SECONDS = 3.0
HOURLY_TICK_SECONDS = 15.0
LONG_TICK_SECONDS = 60.0
"""After 20 minutes in which nothing is waited for. No node is silent meanwhile: agents report before each tick."""
EFFECTS = {
    "drain_node",
    "down_nodes",
    "keep_batch_host",
    "resume_node",
    "create_reservation",
    "set_reservation_nodes",
    "delete_reservation",
    "set_job_reservation",
    "requeue_job",
    "start_job",
    "release_job",
}
REPAIR_EFFECTS = {"reboot_node", "submit_job", "cancel_job", "set_weight"}
REBOOT_SECONDS = 20.0


class Line:
    """The wire to Slurm: counts effects that were carried out, and can be cut, or lose answers."""

    def __init__(self, fake: VirtualSlurm) -> None:
        self._fake = fake
        self.effects: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda _name: None
        self.after: Callable[[str], None] = lambda _name: None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._fake, name)

        def over_the_line(*arguments: object) -> object:
            self.before(name)
            answer = call(*arguments)
            if name in EFFECTS | REPAIR_EFFECTS:
                shown = (",".join(one) if isinstance(one, list) else str(one) for one in arguments[:1])
                self.effects[" ".join([name, *shown])] += 1
                self.after(name)
            return answer

        return over_the_line


class VirtualClock:
    def __init__(self, fake: VirtualSlurm) -> None:
        self._fake = fake
        self._ahead_of_slurm_seconds = 0.0
        self._set_by_seconds = 0.0

    def now(self) -> float:
        return self._fake.now + self._ahead_of_slurm_seconds

    def monotonic(self) -> float:
        return self.now() - self._set_by_seconds

    def set_by(self, seconds: float, *, with_slurm: bool) -> None:
        """`with_slurm`: slurmctld runs on the same machine."""
        self._set_by_seconds += seconds
        if with_slurm:
            self._fake.now += seconds
        else:
            self._ahead_of_slurm_seconds += seconds


class Rehearsal:
    """Eight nodes with agents, three spares held, a managed gang on n1 to n4, and a waiting job of another user."""

    gang_user = "researcher"
    begins_at: float | None = None
    """Earliest start by the virtual clock; None: whenever."""

    def __init__(self, directory: Path, *, slurmds_answer: bool = True, **config: Any) -> None:
        self.fake = VirtualSlurm(NODES)
        self.fake.now = self.begins_at or self.fake.now
        self.fake.leaf_switches = 1  # the spares are those that come last by name
        self._loop_thread = threading.current_thread()
        self._loop_slept = False
        self._recovering = False
        self._idle_tick_seconds, self._slowest_tick_seconds = IDLE_TICK_SECONDS, HOURLY_TICK_SECONDS
        self._known: set[str] = set()
        self.line = Line(self.fake)
        self._config = self._write(directory, config)
        self.silent: set[str] = set()
        self.booted_again: set[str] = set()
        self.boots: Counter[str] = Counter()
        self.gpus: dict[str, list[Gpu]] = {}
        """What NVML shows of a node's GPUs, where that is anything special."""
        self.processes: dict[str, list[StuckProcess]] = {}
        """Processes that keep a node's GPUs."""
        self.never_back: set[str] = set()
        """Nodes that do not come back from a reboot."""
        self._rebooting: dict[str, float] = {}
        self.each_tick: Callable[[], None] = lambda: None
        self.probe: Callable[[SlurmNode], bool] = lambda node: slurmds_answer and node.name not in self.silent
        self.clock = VirtualClock(self.fake)
        self.control_plane = self._compose()
        self._idle_tick_seconds = 1.0  # hundreds of tests begin so
        self.run(3)
        assert self.pool() == ["n6", "n7", "n8"]
        self.gang = self.fake.submit(self.gang_user, 4, comment="understudy")
        self.run(2)
        self.hungry = self.fake.submit("student", 2)
        self.run(2)
        self._idle_tick_seconds = IDLE_TICK_SECONDS
        assert self.gang_nodes() == ["n1", "n2", "n3", "n4"]
        self.line.effects.clear()

    # -- what happens ------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        self._slowest_tick_seconds = LONG_TICK_SECONDS
        self.run_until(lambda: self.clock.monotonic() >= until, seconds + LONG_TICK_SECONDS)
        self._slowest_tick_seconds = HOURLY_TICK_SECONDS

    def run_until(self, predicate: Callable[[], object], seconds: float = 60) -> None:
        """Ticks come slower when nothing has happened for a while: virtual minutes are not what is tested."""
        begun = self.clock.monotonic()
        while not predicate():
            assert self.clock.monotonic() < begun + seconds, f"not within {seconds} s; {self.describe()}"
            self.fake.advance(self._tick_seconds(self.clock.monotonic() - begun))
            self._boot()
            self.report()
            self.each_tick()
            self._recovering = self.control_plane.loop.tick()
            stores = self.control_plane.stores
            assert stores.kept_nodes.records() == stores.fleet.nodes(), "as the loop would see them"
            assert not self._loop_slept, "the loop slept: all other recoveries waited"

    def fail(self, node: str, xid: int = 79) -> None:
        event = b.xid_event(node, xid, self.fake.now, int(self.fake.now * 10), self._boot_id(node))
        self.control_plane.stores.facts.record(node, [event.event], self.clock.now(), lambda _: None)

    def kill_node(self, node: str) -> None:
        self.fake.kill_node(node)
        self.silent.add(node)

    def restart_control_plane(self, mode: str = "act", cluster: str = b.CLUSTER) -> None:
        self._config = self._config.model_copy(update={"mode": Mode(mode), "cluster": cluster})
        self.control_plane.close()
        self.control_plane = self._compose()

    def set_config(self, **sections: Any) -> None:
        """Sets it from here on, by a control plane that starts again."""
        kept = self._config.model_dump()
        kept |= {name: {**kept[name], **values} for name, values in sections.items()}
        self._config = Config.model_validate(kept)
        self.control_plane = self._compose()

    # -- what is seen ------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        return self._config

    @property
    def engine(self) -> Engine:
        return create_engine(self._config.server.database)

    def recoveries(self) -> list[Recovery]:
        """Recoveries of the gang, oldest first."""
        recoveries = self.control_plane.stores.recoveries.newest(100)
        return [one for one in reversed(recoveries) if one.plan.kind is RecoveryKind.POOL_SWAP]

    def decisions(self) -> list[str]:
        return sorted(key.text for key in self.control_plane.stores.journal.keys_since(0.0))

    def ended(self) -> bool:
        recoveries = self.recoveries()
        return bool(recoveries) and all(one.status is not RecoveryStatus.RUNNING for one in recoveries)

    def gang_nodes(self) -> list[str]:
        return sorted(next(job.nodes for job in self.fake.jobs() if job.job_id == self.gang))

    def gang_state(self) -> tuple[str, int]:
        job = next(job for job in self.fake.jobs() if job.job_id == self.gang)
        return job.state, job.restart_count

    def hungry_state(self) -> str:
        return next(job.state for job in self.fake.jobs() if job.job_id == self.hungry)

    def pool(self) -> list[str]:
        return sorted(next((r.nodes for r in self.fake.reservations() if r.name == "understudy_spares"), ()))

    def reservation_names(self) -> set[str]:
        return {reservation.name for reservation in self.fake.reservations()}

    def state_of(self, node: str) -> NodeState:
        return self.control_plane.stores.fleet.nodes()[node].state

    def describe(self) -> str:
        steps = [
            (one.status.value, [(s.name.value, s.status.value, s.detail) for s in one.steps])
            for one in self.recoveries()
        ]
        return f"gang {self.gang_state()} on {self.gang_nodes()}; recoveries {steps}"

    @property
    def tickets(self) -> list[dict[str, Any]]:
        """What they say, oldest first."""
        return [one["body"] for one in reversed(self.control_plane.stores.tickets.tickets(1000))]

    # -- inside ------------------------------------------------------------------------------------------------

    def _compose(self) -> ControlPlane:
        outside = Outside(self.line, self._probe, self.clock, sleep=self._sleep)
        return compose(self._config, outside)

    def _tick_seconds(self, waited_seconds: float) -> float:
        if waited_seconds < 10:
            return TICK_SECONDS if self._recovering else self._idle_tick_seconds
        if waited_seconds < 1200:
            return PATIENT_TICK_SECONDS if waited_seconds < 120 else HOURLY_TICK_SECONDS
        return self._slowest_tick_seconds

    def _boot(self) -> None:
        """Nodes that Slurm reboots are silent meanwhile, and come back with another boot id and whole GPUs."""
        issued = {node.name for node in self.fake.nodes() if "REBOOT_ISSUED" in node.flags}
        for name in self._rebooting.keys() - issued - self.never_back:  # resumed meanwhile: it boots
            self.boots[name] += 1
            self.silent.discard(name)
        self._rebooting = {name: self._rebooting.get(name, self.fake.now) for name in issued}
        self.silent |= issued
        for name, at in self._rebooting.items():
            if self.fake.now - at >= REBOOT_SECONDS and name not in self.never_back:
                self.fake.finish_reboot(name)
                self.gpus.pop(name, None)

    def _boot_id(self, name: str) -> str:
        return f"boot of {name}" + " again" * (self.boots[name] + (name in self.booted_again))

    def _sleep(self, seconds: float) -> None:
        self._loop_slept |= threading.current_thread() is self._loop_thread
        self.fake.advance(seconds)

    def _probe(self, node: SlurmNode) -> bool:
        return self.probe(node)

    def report_steps(self, name: str, *ranks: RankWindow) -> list[str]:
        """Reports of ranks on this node. Returns what is not believed."""
        report = self._report_of(name, ranks=ranks)
        return self.control_plane.telemetry.receive(report, self.clock.now())

    def report(self) -> None:
        if len(self._known) < len(NODES):
            self._known = {*self.control_plane.stores.fleet.nodes()}
        for name in NODES:
            if name not in self.silent and name in self._known:
                self.control_plane.telemetry.receive(self._report_of(name), self.clock.now())

    def _report_of(self, name: str, ranks: Sequence[RankWindow] = ()) -> Report:
        shown: dict[str, Any] = {"gpus": self.gpus[name]} if name in self.gpus else {}
        shown["processes"] = self.processes.get(name, [])
        return b.report(name, ranks=ranks, boot_id=self._boot_id(name), sent_at=self.fake.now, **shown)

    @staticmethod
    def _write(directory: Path, sections: dict[str, Any]) -> Config:
        server = {"database": new_database(directory / "fleet.db"), **sections.get("server", {})}
        return b.config(**({"spares": {"count": 3}} | sections | {"server": server}))


def first(count: int, *cases: Any) -> list[Any]:
    """Cases of which `make test` tries so many, and `make long` the others, too."""
    return [*cases[:count], *(pytest.param(*_values(one), marks=pytest.mark.long) for one in cases[count:])]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def refuse(*names: str) -> Callable[[str], None]:
    """Refusal for `Line.before`: Slurm says no to these calls."""

    def before(name: str) -> None:
        if name in names:
            raise SlurmError(f"{name}: Access/permission denied")

    return before
