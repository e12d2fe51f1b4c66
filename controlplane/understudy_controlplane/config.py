"""The configuration: one TOML file, checked whole at start, frozen, unknown keys refused with a hint.

Each setting has its unit in its name and its effect in its description; `docs/configuration.md` is generated from this
module. The pure rooms call a section a policy.
"""

from __future__ import annotations

import difflib
import tomllib
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from understudy_controlplane.xid_policy import Policy, RowOverride, default_policy

STRAGGLER_STEPS_MAX = 100
"""The control plane keeps 128 steps of each rank; the rest is for ranks that report late."""


class ConfigError(Exception):
    """The configuration file cannot be used; the message names file, key and remedy."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Mode(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


class Server(Section):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(7117, ge=0, le=65535, description="Port to listen on.")
    database: str = Field(
        "sqlite:////var/lib/understudy/understudy.db", description="SQLAlchemy URL of the fleet database."
    )
    agent_token_file: Path = Field(
        Path("/etc/understudy/agent.token"), description="File with the bearer token that agents send."
    )
    operator_token_file: Path | None = Field(
        None, description="File with the bearer token for operator requests. Without it they are refused."
    )


class Gateway(StrEnum):
    AUTO = "auto"
    PYSLURM = "pyslurm"
    CLI = "cli"


class Slurm(Section):
    gateway: Gateway = Field(
        Gateway.AUTO,
        description="How the control plane calls Slurm: `cli` (scontrol and squeue), `pyslurm` (the control plane "
        "does not start where pyslurm cannot be used), or `auto`: pyslurm where it can be imported and "
        "was built for the cluster's version of Slurm, else cli.",
    )
    pyslurm_python: str = Field(
        "", description="Python interpreter that can import pyslurm. Empty: the one that runs the control plane."
    )
    scontrol: str = Field("scontrol", description="Path of the program scontrol.")
    poll_interval_seconds: float = Field(
        1.0, ge=0.1, le=60, description="Time between two readings of Slurm's nodes, jobs and reservations."
    )
    timeout_seconds: float = Field(10.0, gt=0, le=120, description="Time after which a Slurm command counts as failed.")
    probe_timeout_seconds: float = Field(
        0.5,
        gt=0,
        le=10,
        description="Time for the slurmd of a silent node to accept a connection.",
    )


class Jobs(Section):
    opt_in_word: str = Field(
        "understudy",
        min_length=1,
        description="Word in the Slurm comment of jobs that Understudy manages (`sbatch --comment=understudy`). Other "
        "jobs are never touched.",
    )
    swaps_per_hour_max: int = Field(
        6,
        ge=0,
        description="Swaps of one job within an hour, or the share of its nodes below where that is more; after that a "
        "person has to look at it.",
    )
    swaps_per_hour_share: float = Field(
        0.003, ge=0, le=1, description="Swaps of one job within an hour, as a share of the number of its nodes."
    )
    restarts_without_progress_max: int = Field(
        3,
        ge=1,
        description="Restarts of a hung gang without progress in between; after that a person has to look at it.",
    )
    releases_per_hour_max: int = Field(
        6,
        ge=0,
        description="Releases of one job within an hour after Understudy's Prolog refused nodes to it; after that it "
        "stays held for a person.",
    )


class Spares(Section):
    count: int = Field(0, ge=0, description="Nodes to keep as hot spares, in a reservation of the control plane.")
    reservation: str = Field("understudy_spares", description="Name of the reservation that holds the spares.")
    partition: str = Field("", description="Partition to take spares from. Empty: any.")


class Guards(Section):
    quarantined_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of all nodes that may be quarantined at once. Nodes that wait for a person have a budget of "
        "their own, `waiting_share`.",
    )
    quarantined_nodes_min: int = Field(
        12, ge=0, description="The same limit for small fleets: this number of nodes where it is more than that share."
    )
    quarantined_nodes_max: int | None = Field(
        None, ge=0, description="No more nodes than this are quarantined at once, whatever the share."
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
        None, ge=0, description="No more new quarantines than this within an hour, whatever the share."
    )
    domain_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a partition, of a leaf switch or block in Slurm's topology, and of each domain below, "
        "that may be quarantined at once; never below 1 node.",
    )
    domains: dict[str, list[str]] = Field(
        {}, description='Further domains of failure by name, such as `"rack r1" = ["n1", "n2"]`.'
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
        10, ge=1, description="The same limit for small fleets: this number of nodes where it is more than that share."
    )
    breaker_nodes_max: int | None = Field(
        None, ge=1, description="No more nodes than this within that time, whatever the share."
    )
    breaker_share_max: float = Field(
        0.25,
        gt=0,
        le=1,
        description="No more than this share of the nodes that were in service within that time, but never below 3 "
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
    observe_rules: list[str] = Field(
        [],
        description='Rules that are recorded but not acted on, by the beginning of their name: `["xid.74", '
        '"straggler."]`.',
    )


class Silence(Section):
    silent_after_seconds: float = Field(4.0, ge=1, description="Time without a report after which a node is unknown.")
    dead_after_seconds: float = Field(
        6.0,
        ge=1,
        description="Time without a report after which a node is dead, if its slurmd does not answer either and its "
        "job makes no progress.",
    )
    slurmd_silent_seconds: float = Field(
        1.0, ge=0, description="Time for which a slurmd must not answer: one lost answer is not enough."
    )
    mass_nodes_min: int = Field(
        3,
        ge=2,
        description="Nodes silent at once, together with the share below, from which the cause is taken to be the "
        "network or the control plane.",
    )
    mass_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of nodes silent at once from which the control plane does only what an operator requests.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.dead_after_seconds < self.silent_after_seconds:
            raise ValueError("dead_after_seconds must not be less than silent_after_seconds")
        return self


class Straggler(Section):
    window_steps: int = Field(20, ge=8, le=40, description="Steps in a window; their median is judged as one value.")
    windows: int = Field(4, ge=1, le=8, description="Consecutive windows that are compared.")
    windows_slow_min: int = Field(3, ge=1, le=8, description="Slow windows among these that make a node suspect.")
    ratio: float = Field(
        1.05,
        gt=1,
        description="A window is slow when its self time, over the median of peers of the same role, is above this "
        "ratio...",
    )
    robust_z: float = Field(
        3.5, gt=0, description="... and its distance from that median is above this many robust deviations."
    )
    ratio_overall: float = Field(1.058, gt=1, description="Ratio that the last slow windows together must exceed.")
    peers_few: int = Field(16, ge=2, description="Number of peers below which `ratio_few_peers` applies.")
    ratio_few_peers: float = Field(
        1.065, gt=1, description="Ratio that replaces `ratio_overall` where there are few peers."
    )
    noise_z: float = Field(
        5.0,
        gt=0,
        description="Least excess, as a multiple of the error of a median of steps that vary as these do.",
    )
    ratio_gross: float = Field(
        1.3, gt=1, description="Ratio above which, in both halves of one window, a node is suspect at once."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.windows_slow_min > self.windows:
            raise ValueError("windows_slow_min must not be more than windows")
        if self.windows * self.window_steps > STRAGGLER_STEPS_MAX:
            raise ValueError(
                f"windows times window_steps must not be more than {STRAGGLER_STEPS_MAX}: older steps are not kept"
            )
        return self


class Xid(Section):
    burst_silence_seconds: float = Field(
        180.0, ge=1, description="Time without an Xid on a node after which the next Xid begins a new incident."
    )
    echo_seconds: float = Field(30.0, ge=0, description="Time after another fault within which an Xid may be its echo.")
    spread_nodes_min: int = Field(
        2,
        ge=2,
        description="Nodes of one job with the same code from which the program is the cause, where the code allows "
        "for that.",
    )
    spread_wait_seconds: float = Field(
        3.0, ge=0, le=60, description="Time to wait for the other nodes of the gang before such a code counts."
    )
    suspect_hours: float = Field(
        24.0, gt=0, le=168, description="Time within which repeated program errors on the same GPU make it suspect."
    )
    suspect_events_min: int = Field(
        2, ge=2, description="Errors of one code on one GPU, in different jobs, that make it suspect."
    )
    suspect_users_min: int = Field(
        2, ge=1, description="Users among these jobs who did not have the error on another GPU."
    )
    policy: dict[int, RowOverride] = Field(
        {},
        description="Rows of the policy for Xids that this site changes, such as `[xid.policy.94]` with `class`, "
        "`repair` or both, and a `reason` ([codes](xid-policy.md)).",
    )
    switch_policy: dict[int, RowOverride] = Field(
        {}, description="The same for SXids of NVSwitches, such as `[xid.switch_policy.20034]`."
    )

    @cached_property
    def rows(self) -> Policy:
        """The whole policy, with what this site changes."""
        return default_policy().with_overrides(self.policy, self.switch_policy)

    @model_validator(mode="after")
    def _rows_are_whole(self) -> Self:
        self.rows  # noqa: B018  - reading it refuses an incomplete row
        return self


class Hardware(Section):
    gpus_per_node: int = Field(
        0,
        ge=0,
        description="GPUs that every node with GPUs should show. 0: as many as Slurm's Gres gives for the node.",
    )
    ports_per_node: int = Field(
        0,
        ge=0,
        description="Fabric ports that should be active on every node with GPUs; with fewer it is suspect, even if "
        "they have been down since it booted. 0: not checked.",
    )
    gpu_missing_seconds: float = Field(
        60.0, ge=0, description="Time for which a GPU seen earlier in this boot may be missing, as during a reset."
    )
    nvml_silent_seconds: float = Field(
        30.0, ge=10, description="Time without an answer from the driver after which the node is suspect."
    )
    nvml_silent_stalled_seconds: float = Field(
        60.0,
        ge=10,
        description="Time without an answer from the driver after which it is at fault, if a managed gang there has "
        "stood still for the same time.",
    )
    slowed_share: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Share of ten minutes for which the hardware slowed a GPU (heat, power brake) that makes it "
        "suspect.",
    )
    port_down_seconds: float = Field(
        240.0, ge=10, description="Time for which a fabric port that was in use is down, after which it is at fault."
    )
    port_down_stalled_seconds: float = Field(
        25.0, ge=10, description="The same, if a managed gang there has stood still for the same time."
    )
    port_flap_seconds: float = Field(
        25.0, ge=10, description="Shortest time down that counts as a flap when the port comes back."
    )
    port_flaps: int = Field(
        3,
        ge=2,
        description="Flaps after which a port is at fault until a person clears it; the same number of shorter "
        "interruptions makes its node suspect...",
    )
    port_flaps_hours: float = Field(12.0, gt=0, description="... within this time.")
    together_nodes: int = Field(
        4,
        ge=2,
        description="Nodes whose fabric or driver fails alike at once, from which a common cause is assumed (a "
        "switch, a new installation) and the findings are recorded only.",
    )
    together_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of all nodes, together with that number, whose hardware looks wrong alike, from which the "
        "findings are recorded only.",
    )
    disk_free_share_min: float = Field(
        0.01, ge=0, lt=1, description="Share of free room or free inodes on a disk below which the node is suspect."
    )
    clock_offset_seconds: float = Field(
        5.0,
        gt=0,
        description="Difference between the clocks of a node and of the control plane above which it is recorded: the "
        "node's times mislead.",
    )


class Lemon(Section):
    days: float = Field(28.0, gt=0, le=365, description="Time over which a node's faults, losses and failures count.")
    score_min: float = Field(
        2.0,
        gt=0,
        description="Score from which a person is notified of a node and it is taken last as a spare; two faults "
        "reach it.",
    )


class Hang(Section):
    seconds_min: float = Field(
        600.0,
        ge=1,
        description="Time without progress below which a gang never counts as hung. Set it longer than the first "
        "checkpoint takes: rank 0 writing it while the others wait looks like a hang.",
    )
    factor: float = Field(
        5.0,
        ge=1.5,
        description="Multiple of the longest pause between two of its last steps after which a gang counts as hung.",
    )
    first_step_seconds: float = Field(
        1800.0, gt=0, description="Time for a gang's first step, and the longest time to wait for any step."
    )
    together_gangs: int = Field(
        3,
        ge=2,
        description="Gangs that stop at the same time, from which the cause is taken to be the network, the storage or "
        "the control plane. None of them is restarted.",
    )
    together_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of the running gangs, together with that number, from which the control plane does only "
        "what an operator requests.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_step_seconds < self.seconds_min:
            raise ValueError("first_step_seconds must not be less than seconds_min")
        return self


class Recovery(Section):
    step_timeout_seconds: float = Field(
        120.0,
        gt=0,
        description="Time for a recovery step to show its effect; after that the recovery fails and a person is "
        "notified.",
    )
    first_step_timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="The same for the gang's first training step after the restore, and for what people have to do.",
    )
    launcher_timeout_seconds: float = Field(
        20.0,
        gt=0,
        description="Time for a launcher to carry out an order; after that its job is moved with a spare from the "
        "pool.",
    )
    time_credit_minutes_max: int = Field(
        0,
        ge=0,
        description="Minutes in all by which a job's time limit may be raised for the time that faults within its "
        "allocation cost, work since its last checkpoint included. 0: never; raising a limit delays what "
        "Slurm has planned for others.",
    )
    repeat_after_seconds: float = Field(
        2.0, gt=0, description="Time after which a step without a visible effect in Slurm is tried again."
    )
    seats_minutes: int = Field(
        60, ge=5, description="Duration of a seat reservation: it ends by itself if the control plane is gone."
    )

    @model_validator(mode="after")
    def _seats_outlast_the_wait(self) -> Self:
        if self.seats_minutes * 60 <= self.first_step_timeout_seconds:
            raise ValueError("seats_minutes must be longer than first_step_timeout_seconds")
        return self


class Repair(Section):
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
    resets_max: int = Field(1, ge=0, description="Resets of one node within a week.")
    reboot: bool = Field(True, description="Reboot nodes (`scontrol reboot`; needs RebootProgram).")
    reboot_timeout_seconds: float = Field(
        1800.0, gt=0, description="Time for a node to come back from a reboot; after that the reboot has failed."
    )
    reboots_max: int = Field(
        2, ge=0, description="Reboots of one node within a week; after that manual repair is needed."
    )
    quarantines_max: int = Field(
        3,
        ge=1,
        description="Quarantines of one node within a week from which manual repair is needed, whatever the fault.",
    )
    nodes_at_once_max: int = Field(
        2,
        ge=1,
        description="Nodes in repair or validation at once, or the share of all nodes below where that is more.",
    )
    nodes_at_once_share: float = Field(
        0.01, ge=0, le=1, description="Nodes in repair or validation at once, as a share of all nodes."
    )
    cooldown_seconds: float = Field(60.0, ge=0, description="Time between two repairs of the same node.")
    dead_node_wait_seconds: float = Field(
        1800.0, ge=0, description="Time for a dead node to come back by itself; after that manual repair is needed."
    )
    webhook: str = Field(
        "",
        pattern="^(https?://.+)?$",
        description="URL that receives a ticket (POST, JSON) when a person is needed. Empty: tickets are shown at "
        "`/v1/tickets` only.",
    )


class Validation(Section):
    enabled: bool = Field(
        False,
        description="Validate a repaired node before it returns to service. Off: a repaired node waits for a person.",
    )
    user: str = Field(
        "root",
        pattern=r"^[A-Za-z0-9_][\w.-]*$",
        description="User of the control plane's jobs on the node: root, or the user that the control plane runs as.",
    )
    selfcheck: str = Field(
        "understudy selfcheck --json",
        description="Command of the self-check. Where it is not installed it is left out, which the result shows. "
        "Unless the command sets them, `--gpus` (the number in Slurm's Gres) and, for a suspect, "
        "`--slow-ratio` are added.",
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
    ports_active_min: int = Field(
        0, ge=0, description="InfiniBand and RoCE ports that have to be up on a node with GPUs. 0: not checked."
    )
    dcgm_level: int = Field(2, ge=0, le=4, description="Level of `dcgmi diag`, where it is installed. 0: never run.")
    command: str = Field("", description="The site's own validation, a shell command; any exit code but 0 fails it.")
    timeout_seconds: float = Field(
        3600.0, ge=60, description="Time for the whole validation; after that it has failed."
    )
    output_directory: str = Field(
        "",
        description="Directory for the output of the control plane's jobs. Where nodes and control plane both see it, "
        "the end of the output is kept with the step. Empty: only the last 700 bytes are kept, which the "
        "job leaves in its Slurm comment.",
    )
    burn_in_hours: float = Field(
        24.0, ge=0, le=120, description="Time for which `understudy burn-in` repeats the validation of a node."
    )
    burn_in_new_nodes: bool = Field(
        False, description="Burn in each node that is new in Slurm, as soon as no job uses it."
    )
    test_suspects: bool = Field(True, description="Validate each suspect node as soon as no job uses it.")
    suspects_at_once_max: int = Field(
        2,
        ge=1,
        description="Suspects in validation at once, or the share of all nodes below where that is more. Validations "
        "and burn-ins that an operator requested do not count.",
    )
    suspects_at_once_share: float = Field(
        0.01, ge=0, le=1, description="Suspects in validation at once, as a share of all nodes."
    )
    probation_hours: float = Field(24.0, ge=0, description="Time for which a node is on probation after its return.")
    probation_weight: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Weight in Slurm of a node on probation that is no spare. One above the weights of all other "
        "nodes makes jobs get it last. 0: weights are not changed.",
    )


class Config(Section):
    cluster: str = Field(min_length=1, description="Name of the Slurm cluster (ClusterName).")
    mode: Mode = Field(
        Mode.OBSERVE,
        description="`observe` (decides and records what it would do; changes nothing) or `act`.",
    )
    server: Server = Server()
    slurm: Slurm = Slurm()
    jobs: Jobs = Jobs()
    spares: Spares = Spares()
    guards: Guards = Guards()
    silence: Silence = Silence()
    straggler: Straggler = Straggler()
    xid: Xid = Xid()
    hardware: Hardware = Hardware()
    lemon: Lemon = Lemon()
    hang: Hang = Hang()
    recovery: Recovery = Recovery()
    repair: Repair = Repair()
    validation: Validation = Validation()

    @property
    def probes_suspects(self) -> bool:
        return self.mode is Mode.ACT and self.validation.enabled and self.validation.test_suspects


def parse_config(text: str, origin: str) -> Config:
    """`text` is TOML; `origin` names it in errors. Raises ConfigError."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(origin, one) for one in error.errors())) from error


def load_config(path: Path) -> Config:
    """Raises ConfigError when the file is missing, unreadable or wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; name another file with --config") from error
    return parse_config(text, str(path))


def _explain(origin: str, error: Any) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location)
    if error["type"] != "extra_forbidden":
        return f"{origin}: {key}: {error['msg']}"
    section: type[BaseModel] = Config
    for part in location[:-1]:
        if part.isdigit():  # a row of the policy
            section = RowOverride
            break
        annotation = section.model_fields[part].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    keys = [field.alias or name for name, field in section.model_fields.items()]
    near = difflib.get_close_matches(location[-1], keys, n=1)
    known = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(keys)}"
    return f"{origin}: unknown key '{key}'; {known}"
