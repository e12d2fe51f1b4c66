"""The time of a drain's reason in seconds since the epoch, as everywhere else, not as Slurm's command line prints it.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import calendar
import time

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

PRINTED = "%Y-%m-%dT%H:%M:%S"


def upgrade() -> None:
    printed = op.get_bind().execute(sa.text("SELECT name, drain_reason_at FROM node")).all()
    with op.batch_alter_table("node") as batch:
        batch.drop_column("drain_reason_at")
    with op.batch_alter_table("node") as batch:
        batch.add_column(sa.Column("drain_reason_at", sa.BigInteger(), server_default="0", nullable=False))
    _fill({name: calendar.timegm(time.strptime(at, PRINTED)) for name, at in printed if at})


def downgrade() -> None:
    epochs = op.get_bind().execute(sa.text("SELECT name, drain_reason_at FROM node")).all()
    with op.batch_alter_table("node") as batch:
        batch.drop_column("drain_reason_at")
    with op.batch_alter_table("node") as batch:
        batch.add_column(sa.Column("drain_reason_at", sa.Text(), server_default="", nullable=False))
    _fill({name: time.strftime(PRINTED, time.gmtime(at)) for name, at in epochs if at})


def _fill(values: dict[str, int] | dict[str, str]) -> None:
    for name, at in values.items():
        op.execute(sa.text("UPDATE node SET drain_reason_at = :at WHERE name = :name").bindparams(at=at, name=name))
