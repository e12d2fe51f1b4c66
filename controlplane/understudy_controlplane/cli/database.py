"""The control plane's database, for commands that run on its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from understudy_controlplane.cli.options import config_of
from understudy_controlplane.cli.output import Exit, fail

if TYPE_CHECKING:
    from understudy_controlplane.store.database import Engine


@contextmanager
def opened(config: Path) -> Iterator[Engine]:
    """Ends the command where it cannot be used."""
    from understudy_controlplane.store.database import StoreError, open_database, without_secrets

    url = config_of(config).server.database
    try:
        engine = open_database(url, upgrades=False)
        try:
            yield engine
        finally:
            engine.dispose()
    except (OSError, ModuleNotFoundError, StoreError) as error:
        shown = without_secrets(url)
        fail(f"database {shown}: cannot be used: {error}; run this as the control plane's user", Exit.FAILED)
