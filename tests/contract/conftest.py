"""The versions of Slurm are tested beside each other: each has a cluster of its own, and mostly it is waited for."""

from __future__ import annotations

import pytest

from tests.contract.slurm_sides import REAL_SIDES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in REAL_SIDES:
            if isinstance(item, pytest.Function) and item.nodeid.endswith(f"[{name}]"):
                item.add_marker(pytest.mark.xdist_group(name.partition("-")[0]))
