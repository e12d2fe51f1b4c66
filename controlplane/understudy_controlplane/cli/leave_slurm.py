"""`understudy leave-slurm`: ends what the control plane keeps in Slurm, before its package is removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.options import config_of, config_option
from understudy_controlplane.cli.output import Exit, fail

if TYPE_CHECKING:
    from understudy_controlplane.config import Config
    from understudy_controlplane.fleet.node import NodeRecord
    from understudy_controlplane.slurm.protocol import Slurm

CANCELLED_WITHIN_SECONDS = 10
"""Time for the control plane's own jobs to end once they are cancelled: until then Slurm keeps their reservation."""


@click.command("leave-slurm")
@click.option("--resume-nodes", is_flag=True, help="Resume the nodes, too, that Understudy has drained.")
@config_option
def leave_slurm(resume_nodes: bool, config: Path) -> None:
    """End what Understudy keeps in Slurm, once the control plane is stopped: its jobs and reservations, raised weights,
    and on request drains.
    """
    from understudy_controlplane.slurm.cli import CommandLineGateway
    from understudy_controlplane.slurm.protocol import SlurmError

    settings = config_of(config)
    try:
        slurm = CommandLineGateway(settings.slurm.scontrol, None, settings.slurm.timeout_seconds)
        leaving = Leaving(slurm, settings.spares.reservation, stored(settings))
        for line in leaving.lines(resume_nodes):
            click.echo(line)
    except SlurmError as error:
        fail(str(error), Exit.FAILED)
    if leaving.left:
        fail("; ".join(leaving.left) + "; repeat this command when the jobs there have ended", Exit.FAILED)


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database knows. `reservation_before` is by job id: in which the job ran before it got seats."""

    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    reservation_before: Mapping[int, str] = field(default_factory=dict)
    problem: str = ""


def stored(config: Config) -> Stored:
    from understudy_controlplane.fleet.recovery import PoolSwapPlan
    from understudy_controlplane.store.database import StoreError, open_reader, without_secrets
    from understudy_controlplane.store.fleet import FleetStore
    from understudy_controlplane.store.recoveries import RecoveryStore

    url = config.server.database
    try:
        engine = open_reader(url, 1, 60.0)
        try:
            plans = [one.plan for one in RecoveryStore(engine).running()]
            before = {one.job.job_id: one.reservation for one in plans if isinstance(one, PoolSwapPlan)}
            return Stored(FleetStore(engine).nodes(), before)
        finally:
            engine.dispose()
    except (OSError, ModuleNotFoundError, StoreError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        return Stored(problem=f"weights are not restored: database {without_secrets(url)}: {cause}")


@dataclass(slots=True)
class Leaving:
    slurm: Slurm
    pool: str
    stored: Stored
    sleep: Callable[[float], None] = time.sleep
    left: list[str] = field(default_factory=list)
    """What stays, and why."""

    def lines(self, resume_nodes: bool) -> Iterator[str]:
        """Does it, and returns what was done. Raises SlurmError where Slurm cannot be read."""
        if self.stored.problem:
            self.left.append(self.stored.problem)
        yield from self._jobs()
        yield from self._reservations()
        yield from self._weights()
        yield from self._drains(resume_nodes)

    def _jobs(self) -> Iterator[str]:
        """The control plane's own jobs, and jobs of users that wait for the seats that it holds for them."""
        from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX

        for job in self.slurm.jobs():
            name, number = job.reservation, job.job_id
            if name.startswith(NODE_HOLD_PREFIX) and not job.ended:
                yield from self._try(f"job {number}", "cancelled", partial(self.slurm.cancel_job, number))
            elif name.startswith(SEATS_PREFIX) and job.pending:
                before = self.stored.reservation_before.get(number, "")
                act = partial(self.slurm.set_job_reservation, job.address, before)
                yield from self._try(f"job {number}", f"taken out of reservation {name}", act)

    def _reservations(self) -> Iterator[str]:
        from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX

        for name in [one.name for one in self.slurm.reservations()]:
            if name == self.pool or name.startswith((SEATS_PREFIX, NODE_HOLD_PREFIX)):
                patience = CANCELLED_WITHIN_SECONDS if name.startswith(NODE_HOLD_PREFIX) else 0
                act = partial(self.slurm.delete_reservation, name)
                yield from self._try(f"reservation {name}", "deleted", act, patience)

    def _weights(self) -> Iterator[str]:
        """A weight that an administrator has set since stays."""
        for node in self.slurm.nodes():
            record = self.stored.nodes.get(node.name)
            before = record.weight_before if record else None
            if record is not None and before is not None and node.weight == record.weight:
                act = partial(self.slurm.set_weight, node.name, before)
                yield from self._try(f"node {node.name}", f"given its weight {before} again", act)

    def _drains(self, resume_nodes: bool) -> Iterator[str]:
        from understudy_controlplane.fleet.node import REASON_PREFIX

        for node in self.slurm.nodes():
            if not node.reason.startswith(REASON_PREFIX):
                continue
            if resume_nodes:
                yield from self._try(f"node {node.name}", "resumed", partial(self.slurm.resume_node, node.name))
            else:
                yield f"node {node.name} stays out of service: {node.reason}"

    def _try(self, what: str, done: str, act: Callable[[], None], patience_seconds: int = 0) -> Iterator[str]:
        from understudy_controlplane.slurm.protocol import SlurmError

        for second in range(patience_seconds + 1):
            try:
                act()
            except SlurmError as error:
                if second == patience_seconds:
                    self.left.append(f"{what} is not {done}: {error}")
                else:
                    self.sleep(1.0)
            else:
                yield f"{what}: {done}"
                return
