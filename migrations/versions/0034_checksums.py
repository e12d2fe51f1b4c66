"""The checksum of a shard names its algorithm, and may be missing: its writer makes it, nothing reads the file again.

Revision ID: 0034
Revises: 0033
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE checkpoint_shard RENAME COLUMN sha256 TO checksum")


def downgrade() -> None:
    op.execute("ALTER TABLE checkpoint_shard RENAME COLUMN checksum TO sha256")
