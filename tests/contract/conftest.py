"""Each side of the contract has a cluster of its own, so that all sides can be tested at the same time."""

from __future__ import annotations

import pytest

from tests.contract.slurm_sides import REAL_SIDES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in REAL_SIDES:
            if isinstance(item, pytest.Function) and f"[{name}" in item.nodeid:
                item.add_marker(pytest.mark.xdist_group(name))
