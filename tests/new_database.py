"""Databases for tests: the migrations run once for each process, and each test gets a copy of the file."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from understudy_controlplane.store.database import open_database


def new_database(path: Path) -> str:
    """Makes an empty database of the newest schema at `path`; returns its URL."""
    shutil.copy(_migrated(), path)
    return f"sqlite:///{path}"


@functools.cache
def _migrated() -> Path:
    with tempfile.NamedTemporaryFile(prefix="understudy-", suffix=".db", delete=False) as file:
        path = Path(file.name)
    path.unlink()
    open_database(f"sqlite:///{path}").dispose()
    return path
