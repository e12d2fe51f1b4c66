"""Modes of nodes, as the configuration names them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import ConfigError, Mode, parse_config
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.part_modes import not_in_slurm, part_modes

ACT, APPROVE, OBSERVE = Mode.ACT, Mode.APPROVE, Mode.OBSERVE
GPU1 = {"nodes": "gpu[1-64]", "mode": "act"}
DEBUG = {"partition": "debug", "mode": "observe"}


def node(name: str, *partitions: str, known: bool = True) -> NodeView:
    slurm = replace(b.slurm_node(name), partitions=partitions or ("main",))
    return replace(b.node(name), slurm=slurm if known else None)


@pytest.mark.parametrize(
    ("mode", "parts", "limit", "view", "expected"),
    [
        ("observe", [GPU1], ACT, node("gpu64"), ACT),
        ("observe", [GPU1], ACT, node("gpu65"), OBSERVE),
        ("act", [DEBUG], ACT, node("gpu1", "debug", "main"), OBSERVE),
        ("act", [DEBUG], ACT, node("gpu1"), ACT),
        ("act", [GPU1, DEBUG], ACT, node("gpu1", "debug"), OBSERVE),
        ("act", [DEBUG], ACT, node("gpu1", known=False), OBSERVE),
        ("observe", [GPU1], APPROVE, node("gpu1"), APPROVE),
        ("approve", [GPU1], ACT, node("gpu65"), APPROVE),
    ],
)
def test_the_most_careful_entry_counts_and_below_it_the_limit(
    mode: str, parts: list[dict[str, Any]], limit: Mode, view: NodeView, expected: Mode
) -> None:
    config = b.config(mode=mode, modes=parts)
    highest = config.highest_mode.at_most(limit)
    there = [
        view,
        node("other", "debug"),
        *(node(f"gpu{number}") for number in range(1, 65) if f"gpu{number}" != view.name),
    ]
    assert part_modes(config, limit, there).get(view.name, highest) is expected


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        ({"nodes": "gpu1-64", "mode": "observe"}, ("gpu1-64",)),
        ({"nodes": "gpu[1-2]", "mode": "observe"}, ("gpu1", "gpu2")),
        ({"partition": "debgu", "mode": "observe"}, ("debgu",)),
    ],
)
def test_nodes_that_no_entry_names_are_as_careful_as_one_that_is_misspelt(
    entry: dict[str, Any], missing: tuple[str, ...]
) -> None:
    """Slurm writes gpu01 and gpu02; gpu10 has an entry of its own."""
    config = b.config(mode="act", modes=[entry, {"nodes": "gpu10", "mode": "approve"}])
    views = [node("gpu01", "debug"), node("gpu02"), node("gpu10")]
    assert [those for _, those in not_in_slurm(config, views)] == [missing]
    assert part_modes(config, ACT, views) == {"gpu01": OBSERVE, "gpu02": OBSERVE, "gpu10": APPROVE}
    assert part_modes(b.config(mode="act", modes=[{**entry, "mode": "act"}]), ACT, views) == {}


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ('mode = "act"', "name either nodes or a partition"),
        ('mode = "act"\nnodes = "n1"\npartition = "p"', "name either nodes or a partition"),
        ('mode = "act"\nnodes = "n[1-"', "brackets do not match"),
        ('nodes = "n1"', "modes.0.mode: is missing"),
    ],
)
def test_an_entry_that_is_wrong_is_refused(entry: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_config(f'cluster = "c"\n[[modes]]\n{entry}', "site.toml")
