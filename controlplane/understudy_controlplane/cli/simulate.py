"""`understudy simulate`: the control plane against a virtual cluster."""

from __future__ import annotations

import sys

import click

from understudy_controlplane.cli.output import Exit


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="First seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="How many seeds.")
@click.option(
    "--nodes",
    type=click.IntRange(min=16),
    default=16,
    show_default=True,
    help="Nodes of the cluster. With more than 16 a seed is 29 simulated minutes.",
)
@click.option("--trace", is_flag=True, help="Print what happens, second by second.")
def simulate(seed: int, seeds: int, nodes: int, trace: bool) -> None:
    """Run the control plane against a virtual cluster with faults: 15 simulated minutes for each seed of 16 nodes.

    Exits with 1 where an invariant is violated; then the smallest set of events that leads to it is printed.
    """
    from understudy_controlplane.simulate.run import run_seeds

    failed = run_seeds(range(seed, seed + seeds), nodes=nodes, trace=trace, show=click.echo)
    sys.exit(Exit.FAILED if failed else Exit.DONE)
