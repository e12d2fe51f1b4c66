"""An attempt is a restart of Slurm's and a launch within its allocation.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

KEYS = {
    "attempt": ("job", "restart_count"),
    "rank_start": ("job", "restart_count", "rank", "started_at"),
    "first_step": ("job", "restart_count", "rank", "at"),
    "checkpoint_shard": ("job", "restart_count", "step", "rank", "path"),
}
"""Table → what was unique in it until now; the launch comes third."""


def upgrade() -> None:
    for table, key in KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.add_column(sa.Column("launch", sa.Integer(), server_default="0", nullable=False))
            batch.drop_constraint(_name(table, key), type_="unique")
            batch.create_unique_constraint(_name(table, _with_launch(key)), _with_launch(key))


def downgrade() -> None:
    for table, key in KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(_name(table, _with_launch(key)), type_="unique")
            batch.create_unique_constraint(_name(table, key), list(key))
            batch.drop_column("launch")


def _with_launch(key: tuple[str, ...]) -> list[str]:
    return [*key[:2], "launch", *key[2:]]


def _name(table: str, columns: object) -> str:
    return f"uq_{table}_{'_'.join(columns)}"  # type: ignore[arg-type]
