"""Rows of the launcher's table have labels (L10, L20, ...) instead of numbers.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import json
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

LABELS = {
    10: "L10",
    20: "L20",
    30: "L30",
    35: "L40",
    40: "L50",
    41: "L60",
    42: "L70",
    43: "L80",
    44: "L90",
    50: "L100",
    75: "L110",
    60: "L120",
    70: "L130",
    72: "L140",
    71: "L150",
}
NUMBERS = {label: number for number, label in LABELS.items()}
NOT_IN_THE_TABLE = 0


def upgrade() -> None:
    with op.batch_alter_table("launch_end") as batch:
        batch.alter_column(
            "table_row", type_=sa.String(32), existing_nullable=False, postgresql_using="table_row::varchar"
        )
    end = sa.table("launch_end", sa.column("table_row", sa.String))
    label = sa.case({str(number): label for number, label in LABELS.items()}, value=end.c.table_row, else_="")
    op.execute(sa.update(end).values(table_row=label))
    _change_waiting_facts(lambda number: LABELS.get(number, "") if isinstance(number, int) else "")


def downgrade() -> None:
    end = sa.table("launch_end", sa.column("table_row", sa.String))
    numbers = {label: str(number) for label, number in NUMBERS.items()}
    number = sa.case(numbers, value=end.c.table_row, else_=str(NOT_IN_THE_TABLE))
    op.execute(sa.update(end).values(table_row=number))
    with op.batch_alter_table("launch_end") as batch:
        batch.alter_column(
            "table_row", type_=sa.Integer(), existing_nullable=False, postgresql_using="table_row::integer"
        )
    _change_waiting_facts(lambda label: NUMBERS.get(str(label), NOT_IN_THE_TABLE))


def _change_waiting_facts(changed: Callable[[object], object]) -> None:
    """Facts that still wait for their job are stored as the agent sent them."""
    waiting = sa.table("waiting_fact", sa.column("id"), sa.column("fact"))
    connection = op.get_bind()
    for row in connection.execute(sa.select(waiting).where(waiting.c.fact.contains("launch_ended"))).all():
        fact = json.loads(row.fact)
        if fact.get("type") == "launch_ended":
            fact["table_row"] = changed(fact["table_row"])
            op.execute(sa.update(waiting).where(waiting.c.id == row.id).values(fact=json.dumps(fact)))
