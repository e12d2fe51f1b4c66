"""Sections for what the control plane does: guards, recovery, repair, validation."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field, field_validator

from understudy_controlplane.config.section import Section
from understudy_wire.stages import Stage, StageName, merged


class Guards(Section):
    FIXED = frozenset(
        {
            "waiting_nodes_min",
            "waiting_share",
            "quarantines_per_hour_min",
            "quarantines_per_hour_share",
            "breaker_window_seconds",
            "breaker_share",
            "gang_moves_share",
            "gang_moves_min",
            "gang_moves_per_hour_share",
            "gang_moves_per_hour_min",
            "gang_moves_domain_share",
            "gang_moves_domain_min",
            "quarantined_nodes_min",
            "quarantined_share",
            "quarantined_share_max",
            "domain_share_max",
            "breaker_nodes_min",
            "breaker_share_max",
            "page_after_seconds",
            "quarantines_per_hour_max",
        }
    )

    quarantined_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of all nodes that may be quarantined at once; 12 nodes where that is more. Nodes that wait "
        "for a person have a budget of their own, 10 %.",
    )
    quarantined_nodes_min: int = Field(
        12, ge=0, description="The same limit for small fleets: this number of nodes where it is more than that share."
    )
    quarantined_nodes_max: int | None = Field(
        None,
        ge=0,
        description="A lower limit for nodes that are quarantined at once. Without it: 1 % of all nodes, or 12 where "
        "that is more, but at most half of them.",
    )
    quarantined_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="No more than this share of all nodes is quarantined at once, nodes that wait for a person "
        "included; never below 1 node.",
    )
    waiting_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of all nodes that may wait for a person: in manual repair, or quarantined for over an hour "
        "while repair is off or a job goes on there to its end. Further ones count as quarantined.",
    )
    waiting_nodes_min: int = Field(
        4, ge=0, description="The same limit for small fleets: this number of nodes where it is more than that share."
    )
    quarantines_per_hour_share: float = Field(
        0.003, ge=0, le=1, description="New quarantines within an hour, as a share of all nodes."
    )
    quarantines_per_hour_min: int = Field(
        12, ge=0, description="The same limit for small fleets: this number where it is more than that share."
    )
    quarantines_per_hour_max: int | None = Field(
        None,
        ge=0,
        description="No more new quarantines than this within an hour. Without it: 12, or 0.3 % of all nodes.",
    )
    domain_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a partition, of each domain of the topology (leaf switch, block, rack and so on), and of "
        "each domain below, that may be quarantined at once; never below 1 node.",
    )
    domains: dict[str, list[str]] = Field(
        {},
        description='Further domains of failure by name, such as `"rack r1" = ["n1", "n2"]`. Those whose name begins '
        "with a kind, such as rack, are part of the topology.",
    )
    breaker_window_seconds: float = Field(
        600.0, gt=0, description="Time over which the circuit breaker counts quarantined nodes."
    )
    breaker_share: float = Field(
        0.002,
        ge=0,
        le=1,
        description="Share of all nodes that may be newly quarantined within that time; one more opens the circuit "
        "breaker. Only a person closes it again.",
    )
    breaker_nodes_min: int = Field(
        10,
        ge=1,
        description="Nodes that may be newly quarantined within ten minutes, or 0.2 % of all nodes where that is more; "
        "one more opens the circuit breaker. Only a person closes it again.",
    )
    breaker_nodes_max: int | None = Field(
        None,
        ge=1,
        description="A lower limit for nodes that are quarantined within ten minutes: one more opens the circuit "
        "breaker. Without it: 0.2 % of all nodes, or 10 where that is more, but at most a quarter of those in service "
        "(3 in a small fleet).",
    )
    breaker_share_max: float = Field(
        0.25,
        gt=0,
        le=1,
        description="No more than this share of the nodes that were in service within ten minutes, but never below 3 "
        "nodes.",
    )
    gang_moves_share: float = Field(
        0.002,
        ge=0,
        le=1,
        description="Gangs moved or restarted at once, as a share of the number of nodes. A move counts until the "
        "gang's processes have started.",
    )
    gang_moves_min: int = Field(
        10, ge=0, description="The same limit for small fleets: this number where it is more than that share."
    )
    gang_moves_per_hour_share: float = Field(
        0.003,
        ge=0,
        le=1,
        description="Gangs moved or restarted within an hour, as a share of the number of nodes.",
    )
    gang_moves_per_hour_min: int = Field(
        12, ge=0, description="The same limit for small fleets: this number where it is more than that share."
    )
    gang_moves_domain_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the gangs with a seat in a partition, switch, block or domain, of no more than half of "
        "all nodes, that may be moved or restarted at once because of nodes there...",
    )
    gang_moves_domain_min: int = Field(
        4, ge=1, description="... or this number of gangs, where it is more than that share."
    )
    page_after_seconds: float = Field(
        3600.0,
        ge=0,
        description="Time for which a guard holds a quarantine, move, restart or repair back, after which a person is "
        "notified: a ticket, and a [page](notifications.md).",
    )
    observe_rules: list[str] = Field(
        [],
        description='Rules that are recorded but not acted on, by the beginning of their name: `["xid.74", '
        '"straggler."]`.',
    )


class Recovery(Section):
    FIXED = frozenset({"step_timeout_seconds", "first_step_timeout_seconds", "approval_seconds"})

    step_timeout_seconds: float = Field(
        120.0,
        gt=0,
        description="Time for a recovery step to show its effect; after that the recovery fails and a person is "
        "notified.",
    )
    first_step_timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="Time for the gang's first training step after the restore, and for what people have to do, or "
        "`hang.first_step_seconds` where that is more; after that the recovery fails.",
    )
    launcher_timeout_seconds: ClassVar[float] = 20.0
    """Time for a launcher to carry out an order; after that its job is moved with a spare from the pool."""
    time_credit_minutes_max: int = Field(
        0,
        ge=0,
        description="Minutes in all by which a job's time limit may be raised for the time that faults within its "
        "allocation cost. 0: never.",
    )
    approval_seconds: float = Field(
        3600.0,
        gt=0,
        description='Time for an operator to approve a recovery in `mode = "approve"`; after that it is given up, and '
        "proposed again while its fault stands.",
    )
    repeat_after_seconds: ClassVar[float] = 2.0
    """Time after which a step without a visible effect in Slurm is tried again."""
    seats_minutes: ClassVar[int] = 60
    """A seat reservation lasts as long, or twice the time of a first step: it ends by itself if the loop is gone."""


class Repair(Section):
    FIXED = frozenset(
        {"reset_timeout_seconds", "reboots_max", "nodes_at_once_max", "cooldown_seconds", "dead_node_wait_seconds"}
    )

    enabled: bool = Field(
        False,
        description="Repair quarantined nodes, rung by rung. Off: a node stays quarantined until a person resumes it.",
    )
    reset_command: str = Field(
        "",
        description="Shell command that resets a node's GPUs, run there as an exclusive job, such as `nvidia-smi "
        '--gpu-reset ${UNDERSTUDY_GPU:+-i "$UNDERSTUDY_GPU"}`; the variable holds the GPUs at fault, '
        "where they are known. Empty: no reset is tried.",
    )
    evidence_command: str = Field(
        "",
        description="Shell command that prints what a reset would erase, such as `nvidia-smi -q; dmesg`. It runs "
        "before the reset, in the same job, for at most half of its time.",
    )
    agent_run_directory: str = Field(
        "/run/understudy",
        pattern="^/",
        description="`run_directory` of the agents, `%n` for the node's name: through it the agent is asked to "
        "release NVML for the reset.",
    )
    reset_timeout_seconds: float = Field(600.0, gt=0, description="Time for a reset; after that it has failed.")
    resets_max: ClassVar[int] = 1
    """Resets of one node within a week."""
    reboot: bool = Field(True, description="Reboot nodes (`scontrol reboot`; needs RebootProgram).")
    reboot_timeout_seconds: float = Field(
        1800.0, gt=0, description="Time for a node to come back from a reboot; after that the reboot has failed."
    )
    reboots_max: int = Field(
        2, ge=0, description="Reboots of one node within a week; after that manual repair is needed."
    )
    quarantines_max: ClassVar[int] = 3
    """Quarantines of one node within a week from which manual repair is needed, whatever the fault."""
    nodes_at_once_max: int = Field(
        2,
        ge=1,
        description="Nodes in repair or validation at once, or 1 % of all nodes where that is more.",
    )
    nodes_at_once_share: ClassVar[float] = 0.01
    """Nodes in repair or validation at once, as a share of all nodes."""
    cooldown_seconds: float = Field(60.0, ge=0, description="Time between two repairs of the same node.")
    dead_node_wait_seconds: float = Field(
        1800.0,
        ge=0,
        description="Time for a dead node to come back by itself; after that manual repair is needed, or, while "
        "Slurm shows that the node responds, a look at its agent: it waits in the list, without ticket or page.",
    )


USER_NAME = r"[^\s,=()\[\]-][^,=()\[\]\x00-\x1f\x7f]*"
"""Names of directory services have blanks, `\\`, `+` and `$` in them. A minus in front would mean all other users."""


class RunStages(StrEnum):
    NEVER = "never"
    BURN_IN = "burn_in"
    ALWAYS = "always"


class Validation(Section):
    FIXED = frozenset(
        {
            "requested_at_once_max",
            "burn_ins_at_once_max",
            "network_tests_at_once_max",
            "network_wait_minutes",
            "spare_check_minutes_per_day",
            "slow_ratio",
            "nvlinks_active_min",
            "stages_command",
            "probation_hours",
            "test_suspects",
            "run_stages",
        }
    )

    enabled: bool = Field(
        False,
        description="Validate a repaired node before it returns to service. Off: a repaired node waits for a person.",
    )
    user: str = Field(
        "root",
        pattern=f"^{USER_NAME}$",
        description="User of the control plane's jobs on the node: root, or the user that the control plane runs as.",
    )
    selfcheck: str = Field(
        "understudy selfcheck --json",
        description="Command of the self-check; skipped where it is not installed. `--gpus` and, for a suspect, "
        "`--slow-ratio` are added unless the command sets them.",
    )
    slow_ratio: float = Field(
        1.15,
        ge=0,
        description="Time of a GPU over the median of at least two other GPUs of the node above which a suspect fails "
        "its validation. 0: the ratio is reported only.",
    )
    all_reduce_gbps_min: float = Field(
        0.0,
        ge=0,
        description='Least "Avg bus bandwidth" of `all_reduce_perf` over a node\'s GPUs, 8 to 256 MB, in GB/s. 0: it '
        "only has to run.",
    )
    nvlinks_active_min: int = Field(
        0,
        ge=0,
        description="NVLinks of each GPU that have to be up. 0: as many as the GPU of the node with the most has.",
    )
    dcgm_level: int = Field(2, ge=0, le=4, description="Level of `dcgmi diag`, where it is installed. 0: never run.")
    command: str = Field("", description="The site's own validation, a shell command; any exit code but 0 fails it.")
    run_stages: RunStages = Field(
        RunStages.BURN_IN,
        description="Which validations run the stages (clock, CPU, memory, disk, PCIe, NVLink, GPUs), in addition to "
        "the self-check: `never`, `burn_in` or `always`.",
    )
    stages_command: str = Field(
        "understudy selfcheck",
        description="Command that runs the stages, with `--stages -`. Where it is not installed they are left out, "
        "which the result shows.",
    )
    stages: dict[str, dict[str, Any]] = Field(
        {},
        description="Times and pass marks of the stages, a table for each: "
        "`[validation.stages.cpu]` with `seconds`, `pass`, `enabled`, `required`, and `path` for disks.",
    )
    timeout_seconds: float = Field(
        3600.0, ge=60, description="Time for the whole validation; after that it has failed."
    )
    output_directory: str = Field(
        "",
        description="Directory for the output of the control plane's jobs that nodes and control plane share. Empty: "
        "only the last 700 bytes are kept.",
    )
    burn_in_hours: float = Field(
        48.0, ge=0, le=120, description="Time for which `understudy node burn-in` repeats the validation of a node."
    )
    burn_in_new_nodes: bool = Field(
        False, description="Burn in each node that is new in Slurm, as soon as its agent reports and no job uses it."
    )
    test_suspects: bool = Field(True, description="Validate each suspect node as soon as no job uses it.")
    requested_at_once_max: int = Field(
        8, ge=1, description="Nodes at once in a validation that an operator requested; more of them wait."
    )
    burn_ins_at_once_max: int = Field(
        36, ge=1, description="Nodes at once in a burn-in that an operator requested; more of them wait."
    )
    network_tests_at_once_max: int = Field(
        4, ge=1, description="Network tests at once between nodes whose burn-ins end together; more of them wait."
    )
    network_wait_minutes: float = Field(
        60.0,
        ge=0,
        description="Time that a node waits for others whose burn-ins end by then, to test their networks together.",
    )
    spare_check_hours: float = Field(
        0.0,
        ge=0,
        le=168,
        description="Time after which an idle spare is validated again: in turn, one at a time, while another one is "
        "free and nothing else is under way. 0: never.",
    )
    spare_check_minutes_per_day: float = Field(
        60.0, gt=0, description="Node minutes a day, in the whole fleet, that these validations may take."
    )
    suspects_at_once_max: ClassVar[int] = 2
    """Suspects in validation at once, or the share of all nodes below where that is more. Validations and burn-ins that
    an operator requested do not count.
    """
    suspects_at_once_share: ClassVar[float] = 0.01
    """Suspects in validation at once, as a share of all nodes."""
    probation_hours: float = Field(24.0, ge=0, description="Time for which a node is on probation after its return.")
    probation_weight: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Weight in Slurm of a node on probation that is no spare. One above the weights of all other "
        "nodes makes jobs get it last. 0: weights are not changed.",
    )

    @field_validator("stages")
    @classmethod
    def _are_stages(cls, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        merged(tables)
        return tables

    @property
    def all_stages(self) -> dict[StageName, Stage]:
        """Stages with the defaults of what the site leaves out."""
        return merged(self.stages)
