"""A whole site for each test: real Slurm, the control plane, an agent a node. A few seconds each."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.testbed.configuration import IMPATIENT_SCHEDULER
from tests.testbed.installation import NATIVE, Installation
from tests.testbed.site import Site

MakeSite = Callable[..., Site]


SECRET = re.compile(rb"understudy_(secret-of-|[A-Za-z0-9_-]{43})")
"""A token: one of tests/tokens.py, or one that the control plane has made."""


def refuse_secrets_in_logs(site: Site) -> None:
    logs = site.cluster.layout.log_directory.iterdir()
    assert [log.name for log in logs if SECRET.search(log.read_bytes())] == []


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
                slurm_conf_lines=[IMPATIENT_SCHEDULER],
                settings=settings,
                munge=munge,
            )
            stack.callback(refuse_secrets_in_logs, site)
            return stack.enter_context(site)

        yield make
