"""Indexes for lists that show only some jobs, decisions or recoveries, newest first.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_job_state_id", "job", ["state", "id"]),
    ("ix_job_user", "job", ["user", "id"]),
    ("ix_decision_action_id", "decision", ["action", "id"]),
    ("ix_recovery_kind_id", "recovery", ["kind", "id"]),
)


def upgrade() -> None:
    op.drop_index("ix_incident_opened_at", "incident")
    op.create_index("ix_incident_opened_at", "incident", ["subject_kind", "opened_at"])
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _columns in INDEXES:
        op.drop_index(name, table)
    op.drop_index("ix_incident_opened_at", "incident")
    op.create_index("ix_incident_opened_at", "incident", ["opened_at"])
