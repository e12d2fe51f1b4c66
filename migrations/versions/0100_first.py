"""The schema of the first release.

Revision ID: 0100
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

REFUSAL = "the audit is append-only"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
                f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
            )
    else:
        op.execute(
            "CREATE FUNCTION audit_unchanged() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_unchanged()"
        )
    op.create_table(
        "barred_node",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_barred_node")),
    )
    op.create_table(
        "gpu_seen",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("uuid", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("serial", sa.String(length=64), server_default="", nullable=False),
        sa.Column("name", sa.String(length=255), server_default="", nullable=False),
        sa.Column("bus_id", sa.String(length=32), server_default="", nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("faults", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default="0", nullable=False),
        sa.Column("board_part_number", sa.String(length=80), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_seen")),
        sa.UniqueConstraint("uuid", "node", name=op.f("uq_gpu_seen_uuid_node")),
    )
    op.create_index("ix_gpu_seen_last_seen_at", "gpu_seen", ["last_seen_at", "id"], unique=False)
    op.create_index("ix_gpu_seen_node", "gpu_seen", ["node"], unique=False)
    op.create_table(
        "hardware_event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("driver_version", sa.String(length=64), server_default="", nullable=False),
        sa.Column("gpu_set", sa.String(length=16), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware_event")),
        sa.UniqueConstraint(
            "node", "boot_id", "kind", "part", "at", name=op.f("uq_hardware_event_node_boot_id_kind_part_at")
        ),
    )
    op.create_index("ix_hardware_event_received_at", "hardware_event", ["received_at"], unique=False)
    op.create_table(
        "holder",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("term", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=True),
        sa.Column("url", sa.String(length=255), nullable=False),
        sa.Column("installation", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holder")),
    )
    op.create_table(
        "incident",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("subject_kind", sa.String(length=32), server_default="node", nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("nodes", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("signal", sa.String(length=32), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=True),
        sa.Column("fault_at", sa.Double(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident")),
    )
    op.create_index("ix_incident_closed_at", "incident", ["closed_at"], unique=False)
    op.create_index("ix_incident_opened_at", "incident", ["subject_kind", "opened_at"], unique=False)
    op.create_index("ix_incident_subject", "incident", ["subject_kind", "subject"], unique=False)
    op.create_table(
        "job",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("cluster", sa.String(length=255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("submit_at", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("managed", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("run_name", sa.String(length=255), server_default="", nullable=False),
        sa.Column("run_folder", sa.Text(), server_default="", nullable=False),
        sa.Column("run_arguments", sa.String(length=64), server_default="", nullable=False),
        sa.Column("account", sa.Text(), server_default="", nullable=False),
        sa.Column("partition", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint("cluster", "job_id", "submit_at", name=op.f("uq_job_cluster_job_id_submit_at")),
    )
    op.create_index("ix_job_job_id", "job", ["job_id"], unique=False)
    op.create_index("ix_job_run_name", "job", ["run_name", "user_id"], unique=False)
    op.create_index("ix_job_seen_at", "job", ["seen_at"], unique=False)
    op.create_index("ix_job_state", "job", ["state", "seen_at"], unique=False)
    op.create_index("ix_job_state_id", "job", ["state", "id"], unique=False)
    op.create_index("ix_job_user", "job", ["user", "id"], unique=False)
    op.create_index("ix_job_user_id", "job", ["user_id", "id"], unique=False)
    op.create_table(
        "job_refusal",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_refusal")),
        sa.UniqueConstraint("node", "job_id", "at", name=op.f("uq_job_refusal_node_job_id_at")),
    )
    op.create_index("ix_job_refusal_received_at", "job_refusal", ["received_at"], unique=False)
    op.create_table(
        "kernel_event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("xid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("bus_id", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("jobs", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("driver_version", sa.String(length=64), server_default="", nullable=False),
        sa.Column("gpu_set", sa.String(length=16), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernel_event")),
        sa.UniqueConstraint("node", "boot_id", "sequence", name=op.f("uq_kernel_event_node_boot_id_sequence")),
    )
    op.create_index("ix_kernel_event_node", "kernel_event", ["node", "id"], unique=False)
    op.create_index("ix_kernel_event_received_at", "kernel_event", ["received_at"], unique=False)
    op.create_table(
        "maintenance",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("at_once", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("stages", sa.JSON(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance")),
    )
    op.create_index("ix_maintenance_closed_at", "maintenance", ["closed_at"], unique=False)
    op.create_table(
        "message",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("receiver", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("mail", sa.String(length=320), server_default="", nullable=False),
        sa.Column("notices", sa.JSON(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("importance", sa.String(length=16), nullable=False),
        sa.Column("revision", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("accepted", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tries", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("accepted_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_message")),
    )
    op.create_index("ix_message_closed", "message", ["closed"], unique=False)
    op.create_index("ix_message_made_at", "message", ["made_at"], unique=False)
    op.create_table(
        "node",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("table_row", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("cleared_at", sa.Double(), nullable=False),
        sa.Column("vouched_at", sa.Double(), server_default="0", nullable=False),
        sa.Column("drained_at", sa.Double(), nullable=True),
        sa.Column("drain_reason", sa.Text(), nullable=False),
        sa.Column("drain_user", sa.Text(), server_default="", nullable=False),
        sa.Column("drain_reason_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("drain_settled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("drained_under", sa.Double(), nullable=True),
        sa.Column("agent_seen_at", sa.Double(), nullable=True),
        sa.Column("agent_since", sa.Double(), nullable=True),
        sa.Column("slurmd_seen_at", sa.Double(), nullable=True),
        sa.Column("past_boot_id", sa.String(length=64), server_default="", nullable=False),
        sa.Column("weight", sa.BigInteger(), nullable=True),
        sa.Column("weight_before", sa.BigInteger(), nullable=True),
        sa.Column("validation_origin", sa.String(length=32), nullable=True),
        sa.Column("drain_kind", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node")),
    )
    op.create_table(
        "notice",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("importance", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("page", sa.String(length=255), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("over_at", sa.Double(), nullable=True),
        sa.Column("needs", sa.Text(), nullable=False),
        sa.Column("mail", sa.String(length=320), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice")),
        sa.UniqueConstraint("source", "number", name=op.f("uq_notice_source_number")),
    )
    op.create_index("ix_notice_at", "notice", ["at"], unique=False)
    op.create_index("ix_notice_over_at", "notice", ["over_at"], unique=False)
    op.create_index("ix_notice_stage", "notice", ["stage"], unique=False)
    op.create_table(
        "request",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("verb", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), server_default="", nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("detail", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request")),
    )
    op.create_index("ix_request_answered_at", "request", ["answered_at"], unique=False)
    op.create_index("ix_request_subject", "request", ["subject"], unique=False)
    op.create_index("ix_request_verb", "request", ["verb", "at"], unique=False)
    op.create_table(
        "part_seen",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("identity", sa.String(length=128), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("place", sa.String(length=255), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("first_seen_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_part_seen")),
        sa.UniqueConstraint("identity", "kind", "node", name=op.f("uq_part_seen_identity_kind_node")),
    )
    op.create_index("ix_part_seen_last_seen_at", "part_seen", ["last_seen_at", "id"], unique=False)
    op.create_index("ix_part_seen_node", "part_seen", ["node"], unique=False)
    op.create_table(
        "site_signal",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("source", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_site_signal")),
    )
    op.create_index("ix_site_signal_until", "site_signal", ["until"], unique=False)
    op.create_table(
        "ticket",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("label", sa.String(length=255), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.Column("acknowledged_at", sa.Double(), nullable=True),
        sa.Column("acknowledged_by", sa.String(length=255), server_default="", nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ticket")),
        sa.UniqueConstraint("label", name=op.f("uq_ticket_label")),
    )
    op.create_index("ix_ticket_closed_at", "ticket", ["closed_at"], unique=False)
    op.create_index("ix_ticket_node", "ticket", ["node"], unique=False)
    op.create_table(
        "token",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("label", sa.String(length=255), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("made_by", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("revoked_by", sa.String(length=255), server_default="", nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("session_of", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
    )
    op.create_index("ix_token_node", "token", ["node"], unique=False)
    op.create_index("ix_token_revoked_at", "token", ["revoked_at"], unique=False)
    op.create_index("ix_token_session_of", "token", ["session_of"], unique=False)
    op.create_table(
        "waiting_fact",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("fact", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_waiting_fact")),
        sa.UniqueConstraint("digest", name=op.f("uq_waiting_fact_digest")),
    )
    op.create_table(
        "anomaly",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default="0", nullable=False),
        sa.Column("rank", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.String(length=64), nullable=False),
        sa.Column("usual", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_anomaly_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anomaly")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "rank",
            "kind",
            "step",
            "until",
            name=op.f("uq_anomaly_job_restart_count_launch_rank_kind_step_until"),
        ),
    )
    op.create_index("ix_anomaly_kind", "anomaly", ["kind", "received_at"], unique=False)
    op.create_table(
        "anomaly_clearance",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_anomaly_clearance_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_anomaly_clearance")),
    )
    op.create_index("ix_anomaly_clearance_job", "anomaly_clearance", ["job"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default="0", nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("running_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("restore_answer", sa.String(length=16), nullable=True),
        sa.Column("restore_step", sa.BigInteger(), nullable=True),
        sa.Column("restore_path", sa.Text(), nullable=False),
        sa.Column("restore_at", sa.Double(), nullable=True),
        sa.Column("restore_why", sa.Text(), server_default="", nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step_at", sa.Double(), nullable=True),
        sa.Column("count_from", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("code", sa.String(length=255), server_default="", nullable=False),
        sa.Column("config", sa.String(length=255), server_default="", nullable=False),
        sa.Column("data", sa.String(length=255), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_attempt_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("job", "restart_count", "launch", name=op.f("uq_attempt_job_restart_count_launch")),
    )
    op.create_index("ix_attempt_ended_at", "attempt", ["ended_at"], unique=False)
    op.create_table(
        "checkpoint",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("shards", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("packed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("condition", sa.String(length=16), server_default="", nullable=False),
        sa.Column("condition_why", sa.Text(), server_default="", nullable=False),
        sa.Column("layout", sa.String(length=16), server_default="", nullable=False),
        sa.Column("tier", sa.String(length=16), server_default="", nullable=False),
        sa.Column("copy_to", sa.Text(), server_default="", nullable=False),
        sa.Column("then_copy_to", sa.Text(), server_default="", nullable=False),
        sa.Column("blocked_seconds", sa.Double(), nullable=True),
        sa.Column("write_seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_checkpoint_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "step",
            "path",
            "world_size",
            name=op.f("uq_checkpoint_job_restart_count_launch_step_path_world_size"),
        ),
    )
    op.create_index("ix_checkpoint_at", "checkpoint", ["at", "id"], unique=False)
    op.create_index("ix_checkpoint_packed", "checkpoint", ["packed", "at"], unique=False)
    op.create_table(
        "checkpoint_shard",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default="0", nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.String(length=64), nullable=False),
        sa.Column("more_files", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_checkpoint_shard_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_shard")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "step",
            "rank",
            "path",
            name=op.f("uq_checkpoint_shard_job_restart_count_launch_step_rank_path"),
        ),
    )
    op.create_index("ix_checkpoint_shard_received_at", "checkpoint_shard", ["received_at"], unique=False)
    op.create_table(
        "first_step",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default="0", nullable=False),
        sa.Column("rank", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("communicator_at", sa.Double(), nullable=True),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_first_step_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_first_step")),
        sa.UniqueConstraint(
            "job", "restart_count", "launch", "rank", "at", name=op.f("uq_first_step_job_restart_count_launch_rank_at")
        ),
    )
    op.create_table(
        "gang_world",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("ranks", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_gang_world_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gang_world")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "world_size",
            name=op.f("uq_gang_world_job_restart_count_launch_world_size"),
        ),
    )
    op.create_table(
        "incident_finding",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("incident", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("repair", sa.String(length=32), server_default="", nullable=False),
        sa.Column("signal", sa.String(length=32), server_default="", nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["incident"], ["incident.id"], name=op.f("fk_incident_finding_incident_incident")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident_finding")),
        sa.UniqueConstraint("incident", "rule", "repair", name=op.f("uq_incident_finding_incident_rule_repair")),
    )
    op.create_table(
        "launch_end",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("table_row", sa.String(length=32), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("progressed", sa.Boolean(), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("failed_node", sa.String(length=255), nullable=False),
        sa.Column("rank", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("status", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("blamed", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_launch_end_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch_end")),
        sa.UniqueConstraint(
            "job", "restart_count", "launch", "at", name=op.f("uq_launch_end_job_restart_count_launch_at")
        ),
    )
    op.create_index("ix_launch_end_received_at", "launch_end", ["received_at"], unique=False)
    op.create_table(
        "launch_evidence",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_launch_evidence_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch_evidence")),
        sa.UniqueConstraint(
            "job", "restart_count", "launch", "kind", name=op.f("uq_launch_evidence_job_restart_count_launch_kind")
        ),
    )
    op.create_index("ix_launch_evidence_received_at", "launch_evidence", ["received_at"], unique=False)
    op.create_table(
        "launch_start",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("seats", sa.JSON(), nullable=False),
        sa.Column("spares", sa.JSON(), nullable=False),
        sa.Column("lost", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_launch_start_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_launch_start")),
        sa.UniqueConstraint(
            "job", "restart_count", "launch", "at", name=op.f("uq_launch_start_job_restart_count_launch_at")
        ),
    )
    op.create_table(
        "rank_start",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default="0", nullable=False),
        sa.Column("rank", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_rank_start_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rank_start")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "rank",
            "started_at",
            name=op.f("uq_rank_start_job_restart_count_launch_rank_started_at"),
        ),
    )
    op.create_table(
        "recovery",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("fault_at", sa.Double(), nullable=False),
        sa.Column("detected_at", sa.Double(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("never_began", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("ends_as", sa.String(length=32), nullable=True),
        sa.Column("approve_by", sa.Double(), nullable=True),
        sa.Column("approved_at", sa.Double(), nullable=True),
        sa.Column("approved_by", sa.String(length=255), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_recovery_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recovery")),
    )
    op.create_index("ix_recovery_decided_at", "recovery", ["decided_at"], unique=False)
    op.create_index("ix_recovery_ended_at", "recovery", ["ended_at"], unique=False)
    op.create_index("ix_recovery_job", "recovery", ["job"], unique=False)
    op.create_index("ix_recovery_kind", "recovery", ["kind", "decided_at"], unique=False)
    op.create_index("ix_recovery_kind_id", "recovery", ["kind", "id"], unique=False)
    op.create_index("ix_recovery_status", "recovery", ["status"], unique=False)
    op.create_table(
        "restore_report",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("restart_count", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("launch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("rank", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"], name=op.f("fk_restore_report_job_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_restore_report")),
        sa.UniqueConstraint(
            "job",
            "restart_count",
            "launch",
            "rank",
            "path",
            "outcome",
            name=op.f("uq_restore_report_job_restart_count_launch_rank_path_outcome"),
        ),
    )
    op.create_table(
        "suspicion",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_suspicion_node_node")),
        sa.PrimaryKeyConstraint("node", "cause", name=op.f("pk_suspicion")),
    )
    op.create_table(
        "checkpoint_map",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("checkpoint", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("packed_through", sa.BigInteger(), nullable=False),
        sa.Column("shards", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint"], ["checkpoint.id"], name=op.f("fk_checkpoint_map_checkpoint_checkpoint")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_map")),
        sa.UniqueConstraint("checkpoint", name=op.f("uq_checkpoint_map_checkpoint")),
    )
    op.create_table(
        "decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("table_row", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("because", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("from_state", sa.String(length=32), nullable=True),
        sa.Column("to_state", sa.String(length=32), nullable=True),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("incident", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("recovery", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("request", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["incident"], ["incident.id"], name=op.f("fk_decision_incident_incident")),
        sa.ForeignKeyConstraint(["recovery"], ["recovery.id"], name=op.f("fk_decision_recovery_recovery")),
        sa.ForeignKeyConstraint(["request"], ["request.id"], name=op.f("fk_decision_request_request")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision")),
    )
    op.create_index("ix_decision_action", "decision", ["action", "at"], unique=False)
    op.create_index("ix_decision_action_id", "decision", ["action", "id"], unique=False)
    op.create_index("ix_decision_at", "decision", ["at"], unique=False)
    op.create_index("ix_decision_incident", "decision", ["incident"], unique=False)
    op.create_index("ix_decision_recovery", "decision", ["recovery"], unique=False)
    op.create_index("ix_decision_request", "decision", ["request"], unique=False)
    op.create_index("ix_decision_subject", "decision", ["subject", "id"], unique=False)
    op.create_index("ix_decision_to_state", "decision", ["to_state", "at"], unique=False)
    op.create_table(
        "recovery_step",
        sa.Column("recovery", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("attempts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("intended_at", sa.Double(), nullable=True),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.Column("communicator_at", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["recovery"], ["recovery.id"], name=op.f("fk_recovery_step_recovery_recovery")),
        sa.PrimaryKeyConstraint("recovery", "position", name=op.f("pk_recovery_step")),
    )
    op.create_index("ix_recovery_step_done_at", "recovery_step", ["done_at"], unique=False)
    op.create_table(
        "stage_result",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("recovery", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("pass_mark", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["recovery"], ["recovery.id"], name=op.f("fk_stage_result_recovery_recovery")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stage_result")),
        sa.UniqueConstraint("recovery", "node", "stage", name=op.f("uq_stage_result_recovery_node_stage")),
    )
    op.create_index("ix_stage_result_node", "stage_result", ["node", "stage", "id"], unique=False)
    op.create_index("ix_stage_result_stage", "stage_result", ["stage", "id"], unique=False)


def downgrade() -> None:
    op.drop_table("stage_result")
    op.drop_table("recovery_step")
    op.drop_table("decision")
    op.drop_table("checkpoint_map")
    op.drop_table("suspicion")
    op.drop_table("restore_report")
    op.drop_table("recovery")
    op.drop_table("rank_start")
    op.drop_table("launch_start")
    op.drop_table("launch_evidence")
    op.drop_table("launch_end")
    op.drop_table("incident_finding")
    op.drop_table("gang_world")
    op.drop_table("first_step")
    op.drop_table("checkpoint_shard")
    op.drop_table("checkpoint")
    op.drop_table("attempt")
    op.drop_table("anomaly_clearance")
    op.drop_table("anomaly")
    op.drop_table("waiting_fact")
    op.drop_table("token")
    op.drop_table("ticket")
    op.drop_table("site_signal")
    op.drop_table("part_seen")
    op.drop_table("request")
    op.drop_table("notice")
    op.drop_table("node")
    op.drop_table("message")
    op.drop_table("maintenance")
    op.drop_table("kernel_event")
    op.drop_table("job_refusal")
    op.drop_table("job")
    op.drop_table("incident")
    op.drop_table("holder")
    op.drop_table("hardware_event")
    op.drop_table("gpu_seen")
    op.drop_table("barred_node")
    op.drop_table("audit")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION audit_unchanged()")
