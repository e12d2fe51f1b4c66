"""`understudy leave-slurm`: ends what the control plane keeps in Slurm, before its package is removed."""

from __future__ import annotations

from pathlib import Path

import click

from understudy_controlplane.cli.options import config_of, config_option
from understudy_controlplane.cli.output import Exit, fail


@click.command("leave-slurm")
@click.option("--resume-nodes", is_flag=True, help="Resume the nodes, too, that Understudy has drained.")
@config_option
def leave_slurm(resume_nodes: bool, config: Path) -> None:
    """End what Understudy keeps in Slurm, once the control plane is stopped: reservations, and on request drains."""
    from understudy_controlplane.fleet.node import REASON_PREFIX
    from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX
    from understudy_controlplane.slurm.cli import CommandLineGateway
    from understudy_controlplane.slurm.protocol import SlurmError

    settings = config_of(config)
    try:
        slurm = CommandLineGateway(settings.slurm.scontrol, None, settings.slurm.timeout_seconds)
        reservations, nodes = slurm.reservations(), slurm.nodes()
    except SlurmError as error:
        fail(str(error), Exit.FAILED)
    left = []
    for name in (one.name for one in reservations):
        if name == settings.spares.reservation or name.startswith((SEATS_PREFIX, NODE_HOLD_PREFIX)):
            try:
                slurm.delete_reservation(name)
                click.echo(f"reservation {name}: deleted")
            except SlurmError as error:
                left.append(f"reservation {name} stays: {error}")
    for node in nodes:
        if not node.reason.startswith(REASON_PREFIX):
            continue
        if not resume_nodes:
            click.echo(f"node {node.name} stays out of service: {node.reason}")
            continue
        try:
            slurm.resume_node(node.name)
            click.echo(f"node {node.name}: resumed")
        except SlurmError as error:
            left.append(f"node {node.name} is not resumed: {error}")
    if left:
        fail("; ".join(left) + "; repeat this command when the jobs there have ended", Exit.FAILED)
