"""The control plane against a virtual cluster with faults: python -m tests.simulator --help."""

from __future__ import annotations

import sys

import click

from tests.simulator.run import run_seeds


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
def main(seed: int, seeds: int, nodes: int, trace: bool) -> None:
    """15 simulated minutes for each seed of 16 nodes. Exits with 1 where an invariant is violated; then the smallest
    set of events that leads to it is printed.
    """
    sys.exit(1 if run_seeds(range(seed, seed + seeds), nodes=nodes, trace=trace, show=click.echo) else 0)


if __name__ == "__main__":
    main()
