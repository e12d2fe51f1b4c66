"""A whole site for each test: real Slurm, the control plane, an agent a node. A few seconds each."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.testbed.configuration import IMPATIENT_SCHEDULER
from tests.testbed.installation import NATIVE, Installation
from tests.testbed.site import Site

MakeSite = Callable[..., Site]


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    """Starts sites; ends them, and removes their files, after the test."""
    with ExitStack() as stack:

        def make(
            nodes: int = 8,
            spares: int = 3,
            mode: str = "act",
            slurm: Installation = NATIVE,
            slurm_settings: Mapping[str, str | float] | None = None,
            *,
            settings: Mapping[str, Mapping[str, str | float | bool]] | None = None,
            munge: bool = False,
            leaf_switches: Mapping[str, tuple[str, ...]] | None = None,
            blocks: Mapping[str, tuple[str, ...]] | None = None,
            slurm_conf_lines: Sequence[str] = (),
            database_machine: bool = False,
        ) -> Site:
            directory = Path(tempfile.mkdtemp(prefix="ud-"))  # short: sockets lie below it
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            site = Site(
                directory,
                nodes,
                spares,
                mode,
                slurm=slurm,
                slurm_settings=slurm_settings,
                slurm_conf_lines=[IMPATIENT_SCHEDULER, *slurm_conf_lines],
                settings=settings,
                munge=munge,
                leaf_switches=leaf_switches,
                blocks=blocks,
                database_machine=database_machine,
            )
            return stack.enter_context(site)

        yield make
