"""The control plane's database, for commands that run on its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from understudy_controlplane.cli.offline import fail
from understudy_controlplane.config import ConfigError, load_config

if TYPE_CHECKING:
    from understudy_controlplane.store.database import Engine


@contextmanager
def opened(config: Path) -> Iterator[Engine]:
    """Ends the command where it cannot be used."""
    from understudy_controlplane.store.database import StoreError, open_database, without_secrets

    try:
        url = load_config(config).server.database
    except ConfigError as error:
        fail(str(error), 2)
        raise
    try:
        engine = open_database(url)
        try:
            yield engine
        finally:
            engine.dispose()
    except (OSError, ModuleNotFoundError, StoreError) as error:
        fail(f"database {without_secrets(url)}: cannot be used: {error}; run this as the control plane's user", 1)
