"""A newer release: `tests.testbed.serve_virtual` with one more revision of the schema, which adds a column."""

from __future__ import annotations

import runpy
import shutil
import tempfile
from pathlib import Path

from understudy_controlplane.store import database

REVISION = "0200from0100"
SOURCE = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{REVISION}", "0100", None, None


def upgrade() -> None:
    op.add_column("holder", sa.Column("added", sa.Integer(), nullable=True))
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        newer = Path(shutil.copytree(database.MIGRATIONS, Path(folder) / "migrations"))
        (newer / "versions" / f"{REVISION}_adds.py").write_text(SOURCE)
        database.MIGRATIONS = newer
        runpy.run_module("tests.testbed.serve_virtual", run_name="__main__")
