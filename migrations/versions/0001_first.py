"""The fleet, its facts and its journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incident",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("signal", sa.String(length=32), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("fault_at", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident")),
    )
    with op.batch_alter_table("incident", schema=None) as batch_op:
        batch_op.create_index("ix_incident_node", ["node"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.String(length=255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("submit_at", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("managed", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint("cluster", "job_id", "submit_at", name=op.f("uq_job_cluster_job_id_submit_at")),
    )
    op.create_table(
        "kernel_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("xid", sa.Integer(), nullable=True),
        sa.Column("bus_id", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernel_event")),
        sa.UniqueConstraint("node", "boot_id", "sequence", name=op.f("uq_kernel_event_node_boot_id_sequence")),
    )
    with op.batch_alter_table("kernel_event", schema=None) as batch_op:
        batch_op.create_index("ix_kernel_event_at", ["at"], unique=False)

    op.create_table(
        "node",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("table_row", sa.Integer(), nullable=False),
        sa.Column("cleared_at", sa.Double(), nullable=False),
        sa.Column("drained_at", sa.Double(), nullable=True),
        sa.Column("drain_reason", sa.Text(), nullable=False),
        sa.Column("agent_seen_at", sa.Double(), nullable=True),
        sa.Column("slurmd_seen_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node")),
    )
    op.create_table(
        "operator_intent",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("verb", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operator_intent")),
    )
    op.create_table(
        "waiting_fact",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("fact", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_waiting_fact")),
        sa.UniqueConstraint("digest", name=op.f("uq_waiting_fact_digest")),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("running_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("restore_step", sa.BigInteger(), nullable=True),
        sa.Column("restore_path", sa.Text(), nullable=False),
        sa.Column("restore_at", sa.Double(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_attempt_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("job", "restart_count", name=op.f("uq_attempt_job_restart_count")),
    )
    op.create_table(
        "checkpoint_shard",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_checkpoint_shard_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_shard")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "step",
            "rank",
            "path",
            name=op.f("uq_checkpoint_shard_job_restart_count_step_rank_path"),
        ),
    )
    op.create_table(
        "first_step",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_first_step_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_first_step")),
        sa.UniqueConstraint("job", "restart_count", "rank", "at", name=op.f("uq_first_step_job_restart_count_rank_at")),
    )
    op.create_table(
        "incident_finding",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incident.id"], name=op.f("fk_incident_finding_incident_incident")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident_finding")),
        sa.UniqueConstraint("incident", "rule", name=op.f("uq_incident_finding_incident_rule")),
    )
    op.create_table(
        "rank_start",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_rank_start_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rank_start")),
        sa.UniqueConstraint(
            "job", "restart_count", "rank", "started_at", name=op.f("uq_rank_start_job_restart_count_rank_started_at")
        ),
    )
    op.create_table(
        "recovery",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("fault_at", sa.Double(), nullable=False),
        sa.Column("detected_at", sa.Double(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_recovery_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recovery")),
    )
    with op.batch_alter_table("recovery", schema=None) as batch_op:
        batch_op.create_index("ix_recovery_status", ["status"], unique=False)

    op.create_table(
        "decision",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("table_row", sa.Integer(), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("because", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=True),
        sa.Column("recovery", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["incident"], ["incident.id"], name=op.f("fk_decision_incident_incident")),
        sa.ForeignKeyConstraint(["recovery"], ["recovery.id"], name=op.f("fk_decision_recovery_recovery")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision")),
    )
    with op.batch_alter_table("decision", schema=None) as batch_op:
        batch_op.create_index("ix_decision_at", ["at"], unique=False)

    op.create_table(
        "recovery_step",
        sa.Column("recovery", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("intended_at", sa.Double(), nullable=True),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["recovery"], ["recovery.id"], name=op.f("fk_recovery_step_recovery_recovery")),
        sa.PrimaryKeyConstraint("recovery", "position", name=op.f("pk_recovery_step")),
    )


def downgrade() -> None:
    op.drop_table("recovery_step")
    with op.batch_alter_table("decision", schema=None) as batch_op:
        batch_op.drop_index("ix_decision_at")

    op.drop_table("decision")
    with op.batch_alter_table("recovery", schema=None) as batch_op:
        batch_op.drop_index("ix_recovery_status")

    op.drop_table("recovery")
    op.drop_table("rank_start")
    op.drop_table("incident_finding")
    op.drop_table("first_step")
    op.drop_table("checkpoint_shard")
    op.drop_table("attempt")
    op.drop_table("waiting_fact")
    op.drop_table("operator_intent")
    op.drop_table("node")
    with op.batch_alter_table("kernel_event", schema=None) as batch_op:
        batch_op.drop_index("ix_kernel_event_at")

    op.drop_table("kernel_event")
    op.drop_table("job")
    with op.batch_alter_table("incident", schema=None) as batch_op:
        batch_op.drop_index("ix_incident_node")

    op.drop_table("incident")
