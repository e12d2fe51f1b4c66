"""State that was read from row numbers, words and evidence becomes columns, for release 0.2.

- Nodes and decisions: why a node is suspected, what it was before its validation, whether a drained node's jobs go on;
  which states a decision led from and to.
- Words: the state, the repair and the recovery that were called "hands" are called "manual_repair"; the step
  "tell_launcher" is called "order_restart".
- Recoveries: one that is overtaken by facts, or cancelled, ends early; what it had begun is undone first.
- Launches: rows of the launcher's table have labels (L10, L20, ...) instead of numbers.
- Incidents: the subject is a node, a gang or a domain; what code needs of a finding is a typed detail.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
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

REPAIRS = ("none", "restart_app", "reset_gpu", "reboot", "manual_repair")

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
    sa.column("incident"),
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
    _add_columns()
    _rename("hands", "manual_repair")
    entered = list(_entered(op.get_bind()))
    _fill_decisions(entered)
    _fill_nodes(entered)
    _rename_step("tell_launcher", "order_restart")
    _label_launches()
    _fill_incidents()


def downgrade() -> None:
    _number_launches()
    _rename_step("order_restart", "tell_launcher")
    _remove_incidents_of_others()
    _rename("manual_repair", "hands")
    _drop_columns()


def _add_columns() -> None:
    # Not in a batch, which might build a table again: other tables refer to it.
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
    op.add_column("recovery", sa.Column("ends_as", sa.String(32)))
    op.add_column("incident", sa.Column("detail", sa.JSON()))
    op.add_column("incident_finding", sa.Column("detail", sa.JSON()))
    op.add_column("incident_finding", sa.Column("signal", sa.String(32), server_default="", nullable=False))
    op.add_column("incident", sa.Column("subject_kind", sa.String(32), server_default="node", nullable=False))
    op.add_column("incident", sa.Column("nodes", sa.JSON(), server_default="[]", nullable=False))
    op.drop_index("ix_incident_node", "incident")
    op.alter_column("incident", "node", new_column_name="subject")
    op.create_index("ix_incident_subject", "incident", ["subject_kind", "subject"])


def _drop_columns() -> None:
    op.drop_index("ix_incident_subject", "incident")
    op.alter_column("incident", "subject", new_column_name="node")
    op.create_index("ix_incident_node", "incident", ["node"])
    op.drop_column("incident", "nodes")
    op.drop_column("incident", "subject_kind")
    op.drop_column("incident_finding", "signal")
    op.drop_column("incident_finding", "detail")
    op.drop_column("incident", "detail")
    op.drop_column("recovery", "ends_as")
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


def _rename_step(old: str, new: str) -> None:
    step = sa.table("recovery_step", sa.column("name"))
    op.execute(sa.update(step).where(step.c.name == old).values(name=new))
    recovery = sa.table("recovery", sa.column("id"), sa.column("kind"), sa.column("plan", sa.JSON))
    connection = op.get_bind()
    for row in connection.execute(sa.select(recovery).where(recovery.c.kind == "allocation")).all():
        steps = [new if name == old else name for name in row.plan.get("steps", ())]
        connection.execute(sa.update(recovery).where(recovery.c.id == row.id).values(plan={**row.plan, "steps": steps}))


def _label_launches() -> None:
    with op.batch_alter_table("launch_end") as batch:
        batch.alter_column(
            "table_row", type_=sa.String(32), existing_nullable=False, postgresql_using="table_row::varchar"
        )
    end = sa.table("launch_end", sa.column("table_row", sa.String))
    label = sa.case({str(number): label for number, label in LABELS.items()}, value=end.c.table_row, else_="")
    op.execute(sa.update(end).values(table_row=label))
    _change_waiting_facts(lambda number: LABELS.get(number, "") if isinstance(number, int) else "")


def _number_launches() -> None:
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


def _fill_incidents() -> None:
    connection = op.get_bind()
    incident = sa.table("incident", sa.column("id"), sa.column("subject"), sa.column("nodes", sa.JSON))
    for known in connection.execute(sa.select(incident.c.id, incident.c.subject)).all():
        connection.execute(sa.update(incident).where(incident.c.id == known.id).values(nodes=[known.subject]))
    for name in ("incident", "incident_finding"):
        columns = [sa.column("id"), sa.column("signal"), sa.column("evidence", sa.JSON), sa.column("detail", sa.JSON)]
        table = sa.table(name, *columns)
        for row in connection.execute(sa.select(table.c.id, table.c.signal, table.c.evidence)).all():
            values = {"detail": _detail(row.evidence), "signal": row.signal or str(row.evidence.get("signal", ""))}
            connection.execute(sa.update(table).where(table.c.id == row.id).values(values))


def _detail(evidence: dict[str, Any]) -> dict[str, Any] | None:
    """As `fleet.finding.HardwareDetail`. A reset needs the GPU's bus id or index; a bus id alone may be a switch's."""
    part, repair = str(evidence.get("bus_id") or ""), evidence.get("repair")
    gpu = part or evidence.get("gpu", "") if "gpu" in evidence or "xid" in evidence else ""
    found = {
        "kind": "hardware",
        "repair": repair if repair in REPAIRS else None,
        "part": part,
        "gpu": "" if gpu is None else str(gpu),
        "uuid": str(evidence.get("uuid") or ""),
        "boot_id": str(evidence.get("boot_id") or ""),
        "is_event": "sequence" in evidence,
    }
    return found if any(found[key] for key in ("repair", "part", "gpu", "uuid", "boot_id")) else None


def _remove_incidents_of_others() -> None:
    """Older releases know incidents of nodes only."""
    incident = sa.table("incident", sa.column("id"), sa.column("subject_kind"))
    others = sa.select(incident.c.id).where(incident.c.subject_kind != "node").scalar_subquery()
    found = sa.table("incident_finding", sa.column("incident"))
    op.execute(sa.update(decision).where(decision.c.incident.in_(others)).values(incident=None))
    op.execute(sa.delete(found).where(found.c.incident.in_(others)))
    op.execute(sa.delete(incident).where(incident.c.subject_kind != "node"))
