"""The tables. `migrations/` builds the same; a test holds the two together.

Times are seconds since the Unix epoch (REAL). JSON columns hold evidence and plans: values that are shown and
replayed, never searched by their inside.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

Number = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits, in SQLite as well, which numbers rows by itself only where the column is an INTEGER."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

node = Table(
    "node",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("state", String(32), nullable=False),
    Column("since", Double, nullable=False),
    Column("table_row", Number, nullable=False),
    Column("cleared_at", Double, nullable=False),
    Column("vouched_at", Double, nullable=False, server_default="0"),
    Column("drained_at", Double),
    Column("drain_reason", Text, nullable=False, default=""),
    Column("drain_user", Text, nullable=False, server_default=""),
    Column("drain_reason_at", BigInteger, nullable=False, server_default="0"),
    Column("drain_settled", Boolean, nullable=False, server_default=false()),
    Column("drained_under", Double),  # when the slurmctld was started that last showed the drain
    Column("agent_seen_at", Double),  # to the minute
    Column("agent_since", Double),  # when its first agent started, by the control plane's clock
    Column("slurmd_seen_at", Double),  # when its slurmd's port first answered the control plane
    Column("past_boot_id", String(64), nullable=False, server_default=""),  # ended by a reboot of a recovery
    Column("weight", BigInteger),  # in Slurm, for its probation
    Column("weight_before", BigInteger),
    Column("validation_origin", String(32)),  # fleet.node.ValidationOrigin, of a node that is validated
    Column("drain_kind", String(32)),  # fleet.node.DrainKind, of a quarantined node
)

suspicion = Table(
    "suspicion",
    metadata,
    # Why a node is a suspect now. A suspicion that ended is in the decisions.
    Column("node", ForeignKey("node.name"), primary_key=True),
    Column("cause", String(32), primary_key=True),  # fleet.suspicion.SuspicionCause
    Column("since", Double, nullable=False),
)

job = Table(
    "job",
    metadata,
    Column("id", Number, primary_key=True),
    Column("cluster", String(255), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("submit_at", BigInteger, nullable=False),
    Column("user", String(255), nullable=False),
    Column("user_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("managed", Boolean, nullable=False),
    Column("state", String(32), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("seen_at", Double, nullable=False),  # when Slurm last showed it, to the day
    Column("run_name", String(255), nullable=False, server_default=""),  # empty: not known
    Column("run_folder", Text, nullable=False, server_default=""),  # empty: a user named the run
    Column("run_arguments", String(64), nullable=False, server_default=""),  # a sum; empty: not known
    Column("account", Text, nullable=False, server_default=""),  # in Slurm; empty: none, or not known
    Column("partition", Text, nullable=False, server_default=""),  # as Slurm shows it; empty: not known
    UniqueConstraint("cluster", "job_id", "submit_at"),
    Index("ix_job_job_id", "job_id"),
    Index("ix_job_user", "user", "id"),
    Index("ix_job_user_id", "user_id", "id"),
    Index("ix_job_state", "state", "seen_at"),
    Index("ix_job_state_id", "state", "id"),
    Index("ix_job_seen_at", "seen_at"),
    Index("ix_job_run_name", "run_name", "user_id"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False, server_default="0"),
    Column("nodes", JSON, nullable=False, default=list),
    Column("running_at", Double),  # first seen running in Slurm
    Column("ended_at", Double),  # first seen not running any more
    Column("restore_answer", String(16)),  # fleet.job.RestoreAnswer; None: not asked for
    Column("restore_step", BigInteger),
    Column("restore_path", Text, nullable=False, default=""),
    Column("restore_at", Double),
    Column("restore_why", Text, nullable=False, server_default=""),  # what speaks against newer checkpoints
    Column("last_step", BigInteger),
    Column("last_step_at", Double),
    Column("count_from", BigInteger, nullable=False, server_default="0"),  # `fleet.job.Reached`
    # What its training runs with, as its rank 0 names it; empty: not known.
    Column("code", String(255), nullable=False, server_default=""),
    Column("config", String(255), nullable=False, server_default=""),
    Column("data", String(255), nullable=False, server_default=""),
    UniqueConstraint("job", "restart_count", "launch"),
    Index("ix_attempt_ended_at", "ended_at"),
)

rank_start = Table(
    "rank_start",
    metadata,
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False, server_default="0"),
    Column("rank", Number, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("node", String(255), nullable=False),
    Column("pid", Number, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "rank", "started_at"),
)

gang_world = Table(
    "gang_world",
    metadata,
    # How many ranks have started in a world of this size, counted when their starts are stored.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("ranks", Number, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "world_size"),
)

first_step = Table(
    "first_step",
    metadata,
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False, server_default="0"),
    Column("rank", Number, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("communicator_at", Double),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "rank", "at"),
)

checkpoint_shard = Table(
    "checkpoint_shard",
    metadata,
    # Until they are packed into the map of their checkpoint.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False, server_default="0"),
    Column("step", BigInteger, nullable=False),
    Column("rank", Number, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("node", String(255), nullable=False),
    Column("path", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("checksum", String(64), nullable=False),  # algorithm:value, as its writer made it; empty: none
    Column("more_files", JSON, nullable=False, server_default="[]"),  # of this rank: name, bytes, checksum of each
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "step", "rank", "path"),
    Index("ix_checkpoint_shard_received_at", "received_at"),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    # Its shards are counted when they are stored.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("shards", Number, nullable=False),  # of different ranks of this world
    Column("size_bytes", BigInteger, nullable=False),
    Column("at", Double, nullable=False),  # of the newest shard
    Column("packed", Boolean, nullable=False, server_default=false()),  # its map has every shard that is in
    Column("condition", String(16), nullable=False, server_default=""),  # fleet.job.Condition
    Column("condition_why", Text, nullable=False, server_default=""),
    Column("layout", String(16), nullable=False, server_default=""),  # wire.Layout; empty: not known
    Column("tier", String(16), nullable=False, server_default=""),  # wire.Tier; empty: not known
    Column("copy_to", Text, nullable=False, server_default=""),  # path of a copy further away; empty: none
    Column("then_copy_to", Text, nullable=False, server_default=""),  # of a copy of that copy
    Column("blocked_seconds", Double),  # of the rank whose training was held up longest
    Column("write_seconds", Double),  # of the rank that took longest
    UniqueConstraint("job", "restart_count", "launch", "step", "path", "world_size"),
    Index("ix_checkpoint_at", "at", "id"),
    Index("ix_checkpoint_packed", "packed", "at"),
)

checkpoint_map = Table(
    "checkpoint_map",
    metadata,
    # The shards of a checkpoint in one value, beside its row: lists of checkpoints do not read it.
    Column("id", Number, primary_key=True),
    Column("checkpoint", ForeignKey("checkpoint.id"), nullable=False),
    Column("packed_through", BigInteger, nullable=False),  # id of the last row of checkpoint_shard that is in it
    Column("shards", LargeBinary, nullable=False),  # store.shard_map
    UniqueConstraint("checkpoint"),
)

anomaly = Table(
    "anomaly",
    metadata,
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False, server_default="0"),
    Column("rank", Number, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("node", String(255), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),  # -1: it goes on. Not NULL, which would differ from itself
    Column("value", String(64), nullable=False),
    Column("usual", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "rank", "kind", "step", "until"),
    Index("ix_anomaly_kind", "kind", "received_at"),
)

anomaly_clearance = Table(
    "anomaly_clearance",
    metadata,
    # A user trusts a job's checkpoints: nothing received up to here makes them suspect.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("by", String(255), nullable=False),
    Index("ix_anomaly_clearance_job", "job"),
)

restore_report = Table(
    "restore_report",
    metadata,
    # What a rank reported of the checkpoint that it was to restore.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False),
    Column("rank", Number, nullable=False),
    Column("world_size", Number, nullable=False),
    Column("node", String(255), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("outcome", String(16), nullable=False),  # wire.RestoreOutcome
    Column("error", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "rank", "path", "outcome"),
)

launch_start = Table(
    "launch_start",
    metadata,
    # What a launcher made of its allocation. Nodes are shown and counted, never searched.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False),
    Column("node", String(255), nullable=False),  # where the launcher runs
    Column("seats", JSON, nullable=False),
    Column("spares", JSON, nullable=False),
    Column("lost", JSON, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "at"),
)

launch_end = Table(
    "launch_end",
    metadata,
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False),
    Column("table_row", String(32), nullable=False),  # of the launcher's table: L10, L20, ...
    Column("cause", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("progressed", Boolean, nullable=False),
    Column("counted", Boolean, nullable=False),  # it cost a launch of the budget
    Column("failed_node", String(255), nullable=False),
    Column("rank", Number),
    Column("status", Number),
    Column("blamed", JSON, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "at"),
    Index("ix_launch_end_received_at", "received_at"),
)

launch_evidence = Table(
    "launch_evidence",
    metadata,
    # What the ranks of a launch showed before they were ended. Of the job's owner: not for every reader.
    Column("id", Number, primary_key=True),
    Column("job", ForeignKey("job.id"), nullable=False),
    Column("restart_count", Number, nullable=False),
    Column("launch", Number, nullable=False),
    Column("kind", String(32), nullable=False),  # "hang", "crash"
    Column("summary", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("job", "restart_count", "launch", "kind"),
    Index("ix_launch_evidence_received_at", "received_at"),
)

kernel_event = Table(
    "kernel_event",
    metadata,
    Column("id", Number, primary_key=True),
    Column("node", String(255), nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("xid", Number),
    Column("bus_id", String(32), nullable=False),
    Column("text", Text, nullable=False),
    Column("jobs", JSON, nullable=False, server_default="[]"),  # those on the node then: id, submit time, user
    # The machine that reported it, in addition to its boot: fleet.node.Generation. Empty: not known.
    Column("driver_version", String(64), nullable=False, server_default=""),
    Column("gpu_set", String(16), nullable=False, server_default=""),
    UniqueConstraint("node", "boot_id", "sequence"),
    Index("ix_kernel_event_received_at", "received_at"),
    Index("ix_kernel_event_node", "node", "id"),
)

hardware_event = Table(
    "hardware_event",
    metadata,
    # What happened to a part of a node, from other sources than its kernel log.
    Column("id", Number, primary_key=True),
    Column("node", String(255), nullable=False),
    Column("boot_id", String(64), nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("part", Text, nullable=False),
    Column("number", BigInteger),
    Column("seconds", Double, nullable=False),
    Column("text", Text, nullable=False),
    # The machine that reported it, in addition to its boot: fleet.node.Generation. Empty: not known.
    Column("driver_version", String(64), nullable=False, server_default=""),
    Column("gpu_set", String(16), nullable=False, server_default=""),
    UniqueConstraint("node", "boot_id", "kind", "part", "at"),
    Index("ix_hardware_event_received_at", "received_at"),
)

job_refusal = Table(
    "job_refusal",
    metadata,
    # Understudy's Prolog kept a job off a node. By Slurm's id: the job may not be known yet.
    Column("id", Number, primary_key=True),
    Column("node", String(255), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("restart_count", Number),  # of the attempt that was kept off; None where Slurm does not report it
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    UniqueConstraint("node", "job_id", "at"),
    Index("ix_job_refusal_received_at", "received_at"),
)

waiting_fact = Table(
    "waiting_fact",
    metadata,
    # Facts about a job that Slurm has not named yet: kept as they came until it does.
    Column("id", Number, primary_key=True),
    Column("job_id", BigInteger, nullable=False),
    Column("node", String(255), nullable=False),
    Column("received_at", Double, nullable=False),
    Column("fact", Text, nullable=False),
    Column("digest", String(64), nullable=False),  # of node and fact: the same one again is no news
    UniqueConstraint("digest"),
)

incident = Table(
    "incident",
    metadata,
    Column("id", Number, primary_key=True),
    Column("subject_kind", String(32), nullable=False, server_default="node"),  # "node", "gang", "domain"
    Column("subject", String(255), nullable=False),
    Column("nodes", JSON, nullable=False, server_default="[]"),  # concerned, when it was opened
    Column("rule", String(64), nullable=False),
    Column("signal", String(32), nullable=False),
    Column("summary", Text, nullable=False),
    Column("evidence", JSON, nullable=False),  # for people
    Column("detail", JSON),  # `fleet.finding.Detail` of the finding that opened it
    Column("fault_at", Double, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("closed_at", Double),
    Column("outcome", Text, nullable=False, default=""),
    Index("ix_incident_subject", "subject_kind", "subject"),
    Index("ix_incident_opened_at", "subject_kind", "opened_at"),
    Index("ix_incident_closed_at", "closed_at"),
)

incident_finding = Table(
    "incident_finding",
    metadata,
    # What else was found on the subject while its incident was open.
    Column("id", Number, primary_key=True),
    Column("incident", ForeignKey("incident.id"), nullable=False),
    Column("rule", String(64), nullable=False),
    Column("repair", String(32), nullable=False, server_default=""),  # that it asks for
    Column("signal", String(32), nullable=False, server_default=""),
    Column("summary", Text, nullable=False),
    Column("evidence", JSON, nullable=False),  # for people
    Column("detail", JSON),  # `fleet.finding.Detail`
    Column("at", Double, nullable=False),
    UniqueConstraint("incident", "rule", "repair"),
)

recovery = Table(
    "recovery",
    metadata,
    Column("id", Number, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("job", ForeignKey("job.id")),
    Column("plan", JSON, nullable=False),
    Column("status", String(32), nullable=False),
    Column("fault_at", Double, nullable=False),
    Column("detected_at", Double, nullable=False),
    Column("decided_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("outcome", Text, nullable=False, default=""),
    Column("never_began", Boolean, nullable=False, server_default=false()),  # its job on the node never ran
    Column("ends_as", String(32)),  # while it runs: the status with which it ends early
    Column("approve_by", Double),  # of a proposal: until when; NULL: it was none
    Column("approved_at", Double),
    Column("approved_by", String(255), nullable=False, server_default=""),
    Index("ix_recovery_status", "status"),
    Index("ix_recovery_kind", "kind", "decided_at"),
    Index("ix_recovery_kind_id", "kind", "id"),
    Index("ix_recovery_decided_at", "decided_at"),
    Index("ix_recovery_ended_at", "ended_at"),
    Index("ix_recovery_job", "job"),
)

recovery_step = Table(
    "recovery_step",
    metadata,
    Column("recovery", ForeignKey("recovery.id"), primary_key=True),
    Column("position", Number, primary_key=True),
    Column("name", String(32), nullable=False),
    Column("status", String(32), nullable=False),
    Column("attempts", Number, nullable=False, default=0),
    Column("intended_at", Double),
    Column("done_at", Double),
    Column("communicator_at", Double),  # of await_first_step
    Column("detail", Text, nullable=False, default=""),
    Index("ix_recovery_step_done_at", "done_at"),
)

stage_result = Table(
    "stage_result",
    metadata,
    Column("id", Number, primary_key=True),
    Column("recovery", ForeignKey("recovery.id"), nullable=False),
    Column("node", String(255), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("value", Double),  # in the stage's unit; NULL: it was not measured
    Column("pass_mark", Double, nullable=False),
    Column("seconds", Double, nullable=False),  # that it took
    Column("why", Text, nullable=False),  # where it has not passed
    Column("at", Double, nullable=False),
    UniqueConstraint("recovery", "node", "stage"),
    Index("ix_stage_result_node", "node", "stage", "id"),
    Index("ix_stage_result_stage", "stage", "id"),
)

decision = Table(
    "decision",
    metadata,
    Column("id", Number, primary_key=True),
    Column("at", Double, nullable=False),
    Column("key", Text, nullable=False),
    Column("table_row", Number, nullable=False),
    Column("rule", String(64), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("action", String(32), nullable=False),
    Column("because", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("from_state", String(32)),  # of a node, where the decision changed it
    Column("to_state", String(32)),
    Column("evidence", JSON, nullable=False),
    Column("incident", ForeignKey("incident.id")),
    Column("recovery", ForeignKey("recovery.id")),
    Column("request", ForeignKey("request.id")),  # that this decision answers
    Index("ix_decision_at", "at"),
    Index("ix_decision_request", "request"),
    Index("ix_decision_action", "action", "at"),
    Index("ix_decision_action_id", "action", "id"),
    Index("ix_decision_subject", "subject", "id"),
    Index("ix_decision_to_state", "to_state", "at"),
    Index("ix_decision_incident", "incident"),
    Index("ix_decision_recovery", "recovery"),
)

request = Table(
    "request",
    metadata,
    # Requests of operators, newest last; never changed but for the time of the answer.
    Column("id", Number, primary_key=True),
    Column("at", Double, nullable=False),
    Column("verb", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("by", String(255), nullable=False),
    Column("subject", String(255), nullable=False, server_default=""),  # a node's name; empty: the whole
    Column("answered_at", Double),  # when a decision took it up
    Column("until", Double),  # when a hold or a pause ends by itself
    Column("detail", JSON(none_as_null=True)),  # what else it names, such as the nodes that a gang leaves
    Index("ix_request_verb", "verb", "at"),
    Index("ix_request_answered_at", "answered_at"),
    Index("ix_request_subject", "subject"),
)

ticket = Table(
    "ticket",
    metadata,
    # A person is needed.
    Column("id", Number, primary_key=True),
    Column("label", String(255), nullable=False),
    Column("node", String(255), nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("closed_at", Double),  # when the node left manual repair, or an operator closed it
    Column("acknowledged_at", Double),  # when an operator took it over
    Column("acknowledged_by", String(255), nullable=False, server_default=""),
    Column("body", JSON, nullable=False),
    UniqueConstraint("label"),
    Index("ix_ticket_node", "node"),
    Index("ix_ticket_closed_at", "closed_at"),
)

gpu_seen = Table(
    "gpu_seen",
    metadata,
    # One row for each stay of a GPU in a node: a GPU that was moved has several.
    Column("id", Number, primary_key=True),
    Column("uuid", String(64), nullable=False),
    Column("node", String(255), nullable=False),
    Column("serial", String(64), nullable=False, server_default=""),
    Column("name", String(255), nullable=False, server_default=""),
    Column("bus_id", String(32), nullable=False, server_default=""),
    Column("first_seen_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),  # to the hour
    Column("faults", Number, nullable=False, server_default="0"),  # incidents of this GPU in this node
    Column("board_part_number", String(80), nullable=False, server_default=""),
    UniqueConstraint("uuid", "node"),
    Index("ix_gpu_seen_node", "node"),
    Index("ix_gpu_seen_last_seen_at", "last_seen_at", "id"),
)

part_seen = Table(
    "part_seen",
    metadata,
    # One row for each stay of a board, network card, cable or module in a node: one that was moved has several.
    Column("id", Number, primary_key=True),
    Column("kind", String(16), nullable=False),  # wire.PartKind
    Column("identity", String(128), nullable=False),  # its serial number, else its GUID
    Column("node", String(255), nullable=False),
    Column("place", String(255), nullable=False),  # in the node: "board", "mlx5_0", "eth0"
    Column("model", String(255), nullable=False),
    Column("first_seen_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),  # to the hour
    UniqueConstraint("identity", "kind", "node"),
    Index("ix_part_seen_node", "node"),
    Index("ix_part_seen_last_seen_at", "last_seen_at", "id"),
)

audit = Table(
    "audit",
    metadata,
    # Who changed what. Triggers of the database refuse to change or delete rows.
    Column("id", Number, primary_key=True),
    Column("at", Double, nullable=False),
    Column("who", String(255), nullable=False),
    Column("role", String(16), nullable=False),
    Column("address", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("before", JSON, nullable=False),
    Column("after", JSON, nullable=False),
    Index("ix_audit_at", "at"),
)

maintenance = Table(
    "maintenance",
    metadata,
    # Planned work on nodes. Of the newest stage of each node: fleet.maintenance.Stage.
    Column("id", Number, primary_key=True),
    Column("targets", JSON, nullable=False),
    Column("nodes", JSON, nullable=False),
    Column("reason", Text, nullable=False),
    Column("by", String(255), nullable=False),
    Column("at", Double, nullable=False),
    Column("until", Double, nullable=False),
    Column("at_once", Number, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("stages", JSON, nullable=False),
    Column("ended_at", Double),  # by an operator
    Column("closed_at", Double),  # when all nodes were back
    Index("ix_maintenance_closed_at", "closed_at"),
)

site_signal = Table(
    "site_signal",
    metadata,
    # What other systems of the site report of nodes and domains. Live until `until`, or until an operator ends it.
    Column("id", Number, primary_key=True),
    Column("source", String(255), nullable=False),
    Column("key", String(255), nullable=False),
    Column("kind", String(32), nullable=False),  # config.SignalKind
    Column("targets", JSON, nullable=False),  # names of nodes and domains
    Column("summary", Text, nullable=False),
    Column("at", Double, nullable=False),  # when it first came
    Column("until", Double, nullable=False),
    Column("ended_at", Double),  # by an operator; until `until` the same signal is not taken again
    Index("ix_site_signal_until", "until"),
)

notice = Table(
    "notice",
    metadata,
    # One row for each incident, ticket or move of a job that people are notified of.
    Column("id", Number, primary_key=True),
    Column("source", String(16), nullable=False),  # fleet.notice.NoticeSource
    Column("number", Number, nullable=False),  # of the incident, ticket, decision or recovery
    Column("importance", String(16), nullable=False),  # config.Importance
    Column("stage", String(16), nullable=False),  # fleet.notice.Stage
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("about", JSON, nullable=False),
    Column("at", Double, nullable=False),
    Column("page", String(255), nullable=False),
    Column("user", String(255), nullable=False),  # the job's owner; empty: for operators
    Column("over_at", Double),
    Column("needs", Text, nullable=False),  # why a person is needed
    Column("mail", String(320), nullable=False, server_default=""),  # address that the owner chose for this job
    UniqueConstraint("source", "number"),
    Index("ix_notice_stage", "stage"),
    Index("ix_notice_at", "at"),
    Index("ix_notice_over_at", "over_at"),
)

message = Table(
    "message",
    metadata,
    # What one receiver gets about some notices, with what became of it.
    Column("id", Number, primary_key=True),
    Column("receiver", String(64), nullable=False),
    Column("user", String(255), nullable=False),
    Column("mail", String(320), nullable=False, server_default=""),  # address that the user chose; empty: none
    Column("notices", JSON, nullable=False),  # ids
    Column("made_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),  # when it is sent, or tried again
    Column("title", Text, nullable=False),
    Column("shown", Text, nullable=False),
    Column("importance", String(16), nullable=False),
    Column("revision", Number, nullable=False),
    Column("accepted", Number, nullable=False),  # revision
    Column("tries", Number, nullable=False),
    Column("accepted_at", Double),
    Column("error", Text, nullable=False),
    Column("closed", Boolean, nullable=False),
    Index("ix_message_closed", "closed"),
    Index("ix_message_made_at", "made_at"),
)

barred_node = Table(
    "barred_node",
    metadata,
    # Nodes that get no token until an administrator allows them again.
    Column("node", String(255), primary_key=True),
    Column("at", Double, nullable=False),
    Column("by", String(255), nullable=False),
)

token = Table(
    "token",
    metadata,
    # Who may send requests. Of the secret itself nothing is stored but its digest.
    Column("id", Number, primary_key=True),
    Column("digest", String(64), nullable=False),  # SHA-256, hexadecimal
    Column("role", String(16), nullable=False),  # fleet.identity.Role
    Column("label", String(255), nullable=False),
    Column("node", String(255), nullable=False),  # for which it speaks; empty: for none
    Column("made_at", Double, nullable=False),
    Column("made_by", String(255), nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("revoked_by", String(255), nullable=False, server_default=""),
    Column("last_used_at", Double),  # to the hour; not kept for nodes
    Column("session_of", BigInteger),  # the token from which this browser session was made
    UniqueConstraint("digest"),
    Index("ix_token_node", "node"),
    Index("ix_token_revoked_at", "revoked_at"),
    Index("ix_token_session_of", "session_of"),
)

holder = Table(
    "holder",
    metadata,
    Column("id", Number, primary_key=True),  # 1: there is one row
    Column("term", Number, nullable=False),  # of the control plane that leads; each that takes over has a higher one
    Column("renewed_at", Double),  # the database's clock; null: it gave the lead up
    Column("url", String(255), nullable=False),
    Column("installation", String(32), nullable=False),  # made at random with the database, the same in each copy
)
