"""Indexes for the queries of every tick and route, and for deleting what is old.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_anomaly_kind", "anomaly", ["kind", "received_at"]),
    ("ix_job_job_id", "job", ["job_id"]),
    ("ix_job_state", "job", ["state", "seen_at"]),
    ("ix_job_seen_at", "job", ["seen_at"]),
    ("ix_attempt_ended_at", "attempt", ["ended_at"]),
    ("ix_kernel_event_received_at", "kernel_event", ["received_at"]),
    ("ix_kernel_event_node", "kernel_event", ["node", "id"]),
    ("ix_incident_opened_at", "incident", ["opened_at"]),
    ("ix_incident_closed_at", "incident", ["closed_at"]),
    ("ix_recovery_decided_at", "recovery", ["decided_at"]),
    ("ix_recovery_job", "recovery", ["job"]),
    ("ix_decision_subject", "decision", ["subject", "id"]),
    ("ix_decision_to_state", "decision", ["to_state", "at"]),
    ("ix_decision_incident", "decision", ["incident"]),
    ("ix_decision_recovery", "decision", ["recovery"]),
    ("ix_operator_intent_verb", "operator_intent", ["verb", "at"]),
    ("ix_operator_intent_answered_at", "operator_intent", ["answered_at"]),
    ("ix_operator_intent_subject", "operator_intent", ["subject"]),
    ("ix_ticket_closed_at", "ticket", ["closed_at"]),
    ("ix_gpu_seen_last_seen_at", "gpu_seen", ["last_seen_at", "id"]),
)
REPLACED = (
    ("ix_kernel_event_at", "kernel_event", ["at"]),
    ("ix_anomaly_received_at", "anomaly", ["received_at"]),
)


def upgrade() -> None:
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)
    for name, table, _columns in REPLACED:
        op.drop_index(name, table)


def downgrade() -> None:
    for name, table, columns in REPLACED:
        op.create_index(name, table, columns)
    for name, table, _columns in INDEXES:
        op.drop_index(name, table)
