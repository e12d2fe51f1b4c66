"""What row numbers meant for a node until now becomes columns: why it is suspected, what it was before its
validation, whether a drained node's jobs go on; and of a decision, which states it led from and to. The state, the
repair and the recovery that were called "hands" are called "manual_repair".

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

SUSPECTED_BY_ROW = {20: "slow", 100: "hang", 103: "black_hole", 140: "health", 150: "corruption"}
VALIDATION_NOT_BEGUN_ROW = 224
"""The suspect that it leads back to is suspected of what it was before."""

ORIGIN_BY_ROW = {
    201: "quarantined",
    210: "repaired",
    253: "released",
    254: "in_service",
    255: "suspect_probed",
    257: "suspect_requested",
    258: "probation",
}
DRAIN_AT_JOB_END_ROW = 130
STATE_BY_ROW = {
    **dict.fromkeys((10, 11, 12, 18, 130, 211, 221, 222, 225), "quarantined"),
    **dict.fromkeys((20, 100, 103, 140, 150, 224), "suspect"),
    **dict.fromkeys((21, 31, 41, 50, 223, 230, 240, 252), "in_service"),
    **dict.fromkeys((40, 241), "foreign_drain"),
    **dict.fromkeys(ORIGIN_BY_ROW, "validating"),
    **dict.fromkeys((220, 226), "probation"),
    30: "unknown",
    200: "repairing",
    202: "manual_repair",
    250: "operator_hold",
    251: "retired",
}

node = sa.table("node", *(sa.column(name) for name in ("name", "state", "table_row", "since", "validation_origin")))
node.append_column(sa.column("drain_kind"))
suspicion = sa.table("suspicion", *(sa.column(name) for name in ("node", "cause", "since")))
decision = sa.table(
    "decision",
    *(sa.column(name) for name in ("id", "at", "key", "rule", "subject", "table_row", "from_state", "to_state")),
)


class Entered(NamedTuple):
    """A state that a node entered by a decision."""

    decision: int
    node: str
    row: int
    at: float
    before: str
    to: str


def upgrade() -> None:
    op.add_column("node", sa.Column("validation_origin", sa.String(32)))
    op.add_column("node", sa.Column("drain_kind", sa.String(32)))
    op.add_column("decision", sa.Column("from_state", sa.String(32)))
    op.add_column("decision", sa.Column("to_state", sa.String(32)))
    op.create_table(
        "suspicion",
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("cause", sa.String(32), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name="fk_suspicion_node_node"),
        sa.PrimaryKeyConstraint("node", "cause", name="pk_suspicion"),
    )
    _rename("hands", "manual_repair")
    entered = list(_entered(op.get_bind()))
    _fill_decisions(entered)
    _fill_nodes(entered)


def downgrade() -> None:
    _rename("manual_repair", "hands")
    op.drop_table("suspicion")
    op.drop_column("decision", "to_state")
    op.drop_column("decision", "from_state")
    op.drop_column("node", "drain_kind")
    op.drop_column("node", "validation_origin")


def _entered(connection: sa.Connection) -> Iterator[Entered]:
    """Oldest first. The key of a decision that changes a state ends with its cause; others go on with the rule."""
    states: dict[str, str] = {}
    query = sa.select(decision).where(decision.c.table_row.in_(STATE_BY_ROW), decision.c.rule != "")
    for row in connection.execute(query.order_by(decision.c.id)).all():
        if row.key.count("|") == 3:
            to = STATE_BY_ROW[row.table_row]
            before = states.get(row.subject, "in_service")
            yield Entered(row.id, row.subject, row.table_row, row.at, before, to)
            states[row.subject] = to


def _fill_decisions(entered: list[Entered]) -> None:
    rows = [{"of_decision": one.decision, "before": one.before, "to": one.to} for one in entered]
    if rows:
        this = decision.c.id == sa.bindparam("of_decision")
        change = sa.update(decision).where(this).values(from_state=sa.bindparam("before"), to_state=sa.bindparam("to"))
        op.get_bind().execute(change, rows)


def _fill_nodes(entered: list[Entered]) -> None:
    connection = op.get_bind()
    last_suspected = {one.node: one for one in entered if one.row in SUSPECTED_BY_ROW}
    for row in connection.execute(sa.select(node)).all():
        this = sa.update(node).where(node.c.name == row.name)
        origin = ORIGIN_BY_ROW.get(row.table_row, "quarantined") if row.state == "validating" else None
        if row.state == "validating":
            connection.execute(this.values(validation_origin=origin))
        elif row.state == "quarantined":
            later = row.table_row == DRAIN_AT_JOB_END_ROW
            connection.execute(this.values(drain_kind="at_job_end" if later else "now"))
        if row.state == "suspect" or origin in ("suspect_probed", "suspect_requested"):
            known = last_suspected.get(row.name)
            cause = SUSPECTED_BY_ROW.get(row.table_row) or (SUSPECTED_BY_ROW[known.row] if known else "health")
            since = row.since if row.table_row in SUSPECTED_BY_ROW else known.at if known else 0.0
            connection.execute(sa.insert(suspicion).values(node=row.name, cause=cause, since=since))


def _rename(old: str, new: str) -> None:
    """As a node's state, a recovery's kind, a rung of the repair ladder, and what a finding asks for."""
    connection = op.get_bind()
    for table, column in (("node", "state"), ("recovery", "kind"), ("decision", "rule")):
        values = sa.table(table, sa.column(column))
        prefix = "repair." if column == "rule" else ""
        this = values.c[column] == prefix + old
        connection.execute(sa.update(values).where(this).values({column: prefix + new}))
    for table, column, keys in (
        ("recovery", "plan", ("kind", "rung")),
        ("decision", "evidence", ("rung", "repair")),
        ("incident", "evidence", ("repair",)),
        ("incident_finding", "evidence", ("repair",)),
    ):
        rows = sa.table(table, sa.column("id"), sa.column(column, sa.JSON))
        stored = rows.c[column]
        for row in connection.execute(sa.select(rows).where(sa.cast(stored, sa.Text).like(f'%"{old}"%'))).all():
            known = dict(row[1])
            known |= {key: new for key in keys if known.get(key) == old}
            connection.execute(sa.update(rows).where(rows.c.id == row.id).values({column: known}))
