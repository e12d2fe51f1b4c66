"""The shards of a checkpoint are packed into one value, and a checkpoint has a condition.

A checkpoint that an attempt restored, and that was deleted from the database since, comes back as one that is lost:
its job has saved something, and is never answered that it has not.

Revision ID: 0037
Revises: 0036
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

from understudy_controlplane.store.shard_map import Shard, pack, unpack

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

OF_CHECKPOINT = ("job", "restart_count", "launch", "step", "path", "world_size")
SHARD = ("rank", "node", "file", "size_bytes", "checksum", "at")
ROWS_AT_ONCE = 500

INSERT = sa.text(
    "INSERT INTO checkpoint_map (checkpoint, packed_through, shards) VALUES (:checkpoint, :through, :shards)"
)

LOST = """
INSERT INTO checkpoint (job, restart_count, launch, step, path, world_size, shards, size_bytes, at, packed, condition,
    condition_why)
  SELECT job, restart_count, launch, restore_step, restore_path, 1, 0, 0, coalesce(restore_at, 0), TRUE, 'lost',
    'an attempt restored it, and nothing else is recorded of it'
  FROM attempt WHERE restore_path <> ''
    AND NOT EXISTS (SELECT 1 FROM checkpoint AS saved WHERE saved.path = attempt.restore_path)
    AND NOT EXISTS (SELECT 1 FROM checkpoint AS own WHERE own.job = attempt.job)
    AND NOT EXISTS (
      SELECT 1 FROM attempt AS later
        WHERE later.job = attempt.job AND later.restore_path <> '' AND later.id > attempt.id
    )
"""


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("checkpoint_shard", sa.Column("more_files", sa.JSON(), server_default="[]", nullable=False))
    for column in (
        sa.Column("packed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("condition", sa.String(16), server_default="", nullable=False),
        sa.Column("condition_why", sa.Text(), server_default="", nullable=False),
    ):
        op.add_column("checkpoint", column)
    op.create_table(
        "checkpoint_map",
        sa.Column("id", number, nullable=False),
        sa.Column("checkpoint", number, nullable=False),
        sa.Column("packed_through", sa.BigInteger(), nullable=False),
        sa.Column("shards", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoint_map"),
        sa.ForeignKeyConstraint(["checkpoint"], ["checkpoint.id"], name="fk_checkpoint_map_checkpoint_checkpoint"),
        sa.UniqueConstraint("checkpoint", name="uq_checkpoint_map_checkpoint"),
    )
    connection = op.get_bind()
    for checkpoint, shards in _shards_by_checkpoint(connection):
        values = {"checkpoint": checkpoint, "through": max(one.order for one in shards), "shards": pack(shards)}
        connection.execute(INSERT, values)
    op.execute("UPDATE checkpoint SET packed = TRUE")
    # The newest row stays: SQLite would give its number to the next one, which those who read on after it would miss.
    op.execute("DELETE FROM checkpoint_shard WHERE rank < world_size AND id < (SELECT MAX(id) FROM checkpoint_shard)")
    op.execute(LOST)
    op.create_index("ix_checkpoint_packed", "checkpoint", ["packed", "at"])


def _shards_by_checkpoint(connection: sa.Connection) -> Iterator[tuple[int, list[Shard]]]:
    """Row of a checkpoint → its shards."""
    same = " AND ".join(f"s.{name} = c.{name}" for name in OF_CHECKPOINT)
    rows = connection.execute(
        sa.text(
            f"SELECT c.id, {', '.join(f's.{name}' for name in SHARD)}, s.id "  # noqa: S608 - all of it is here
            f"FROM checkpoint AS c JOIN checkpoint_shard AS s ON {same} WHERE s.rank < s.world_size ORDER BY c.id, s.id"
        ).execution_options(yield_per=10_000)
    )
    for checkpoint, found in groupby(rows, key=lambda row: row[0]):
        yield checkpoint, [Shard(*row[1:]) for row in found]


def downgrade() -> None:
    """Further files of a rank are not known to the older release."""
    connection = op.get_bind()
    columns = ", ".join(OF_CHECKPOINT)
    found = connection.execute(
        sa.text(f"SELECT {columns}, m.shards FROM checkpoint_map AS m JOIN checkpoint AS c ON c.id = m.checkpoint")  # noqa: S608 - as above
    ).all()
    known = set(connection.execute(sa.text("SELECT id FROM checkpoint_shard")).scalars())
    names = (*OF_CHECKPOINT, *SHARD, "id", "received_at")
    insert = sa.text(f"INSERT INTO checkpoint_shard ({', '.join(names)}) VALUES ({', '.join(':' + n for n in names)})")  # noqa: S608 - as above
    for *key, packed in found:
        rows: list[dict[str, Any]] = []
        for shard in unpack(packed):
            if shard.order not in known:
                known.add(shard.order)
                rows.append(dict(zip(names, (*key, *shard, shard.at), strict=True)))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            connection.execute(insert, rows[first : first + ROWS_AT_ONCE])
    op.drop_index("ix_checkpoint_packed", "checkpoint")
    op.drop_table("checkpoint_map")
    op.execute("DELETE FROM checkpoint WHERE condition = 'lost' AND shards = 0")
    for name in ("condition_why", "condition", "packed"):
        op.drop_column("checkpoint", name)
    op.drop_column("checkpoint_shard", "more_files")
