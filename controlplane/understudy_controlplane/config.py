"""The configuration: one TOML file, checked whole at start, frozen, unknown keys refused with a hint.

Every setting stands here with its unit in its name and its reason in its description; `docs/configuration.md` is
generated from this module. Sections are what the pure rooms call policy.
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
        None, description="File with the bearer token for operator actions. Without it they are refused."
    )


class Gateway(StrEnum):
    AUTO = "auto"
    PYSLURM = "pyslurm"
    CLI = "cli"


class Slurm(Section):
    gateway: Gateway = Field(
        Gateway.AUTO,
        description="How Slurm is talked to: `cli` (scontrol and squeue), `pyslurm` (refuses to start where it cannot "
        "be used), or `auto`: pyslurm where it imports and was built for the cluster's version of Slurm, else cli.",
    )
    pyslurm_python: str = Field(
        "", description="A Python that can import pyslurm. Empty: the one that runs the control plane."
    )
    scontrol: str = Field("scontrol", description="Program to run as scontrol.")
    poll_interval_seconds: float = Field(
        1.0, ge=0.1, le=60, description="How often nodes, jobs and reservations are read."
    )
    timeout_seconds: float = Field(10.0, gt=0, le=120, description="After this a Slurm command counts as lost.")
    probe_timeout_seconds: float = Field(
        0.5,
        gt=0,
        le=10,
        description="How long a slurmd may take to accept a connection when its node is silent.",
    )


class Jobs(Section):
    opt_in_word: str = Field(
        "understudy",
        min_length=1,
        description="A job is ours to recover when this word stands in its Slurm comment "
        "(`sbatch --comment=understudy`). Other jobs are never touched.",
    )
    swaps_per_hour_max: int = Field(
        6, ge=0, description="A job that was moved this often within an hour is left to a person."
    )
    restarts_without_progress_max: int = Field(
        3,
        ge=1,
        description="A gang that was started anew this often because it hung, without getting any further in between, "
        "is left to a person.",
    )
    releases_per_hour_max: int = Field(
        6,
        ge=0,
        description="A job that our Prolog kept off nodes this often within an hour stays held for a person.",
    )


class Spares(Section):
    count: int = Field(0, ge=0, description="Nodes to keep as hot spares in a reservation of our own.")
    reservation: str = Field("understudy_spares", description="Name of that reservation.")
    partition: str = Field("", description="Take spares from this partition only; empty: from any.")


class Guards(Section):
    quarantined_nodes_max: int = Field(4, ge=0, description="No further node is quarantined while this many are.")
    quarantined_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="The same as a share of all nodes; the smaller of both counts, but never below 1.",
    )
    quarantines_per_hour_max: int = Field(8, ge=0, description="New quarantines within an hour, fleet-wide.")
    domain_share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a partition, of a leaf switch or block of Slurm's topology, and of a domain below, that "
        "may be quarantined; never below 1.",
    )
    domains: dict[str, list[str]] = Field(
        {}, description='Further domains of failure by name, such as `"rack r1" = ["n1", "n2"]`.'
    )
    breaker_window_seconds: float = Field(
        600.0, gt=0, description="The circuit breaker counts the nodes quarantined within this."
    )
    breaker_nodes_max: int = Field(
        6, ge=1, description="One more than these within the window opens it. Only a person closes it again."
    )
    breaker_share_max: float = Field(
        0.25, gt=0, le=1, description="The same as a share of the nodes that were well; the smaller counts, at least 3."
    )
    observe_rules: list[str] = Field(
        [], description='Rules that only observe, by the beginning of their name: `["xid.74", "straggler."]`.'
    )


class Silence(Section):
    silent_after_seconds: float = Field(
        4.0, ge=1, description="A node whose agent did not report for this long is unknown."
    )
    dead_after_seconds: float = Field(
        6.0,
        ge=1,
        description="A node silent for this long, whose slurmd answers nobody either, is dead, unless its job goes on.",
    )
    slurmd_silent_seconds: float = Field(
        1.0, ge=0, description="So long nobody must answer at the slurmd's port: a single lost answer is none."
    )
    mass_nodes_min: int = Field(3, ge=2, description="This many nodes silent at once, and the share below: our fault.")
    mass_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="With this share of nodes silent at once nothing is done that no person asks for.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.dead_after_seconds < self.silent_after_seconds:
            raise ValueError("dead_after_seconds must not be less than silent_after_seconds")
        return self


class Straggler(Section):
    window_steps: int = Field(20, ge=8, le=40, description="Steps whose median is judged as one value.")
    windows: int = Field(4, ge=1, le=8, description="Consecutive windows that are looked at.")
    windows_slow_min: int = Field(3, ge=1, le=8, description="Slow windows among them that make a suspect.")
    ratio: float = Field(1.05, gt=1, description="Slow: self time over the median of peers of the same role.")
    robust_z: float = Field(3.5, gt=0, description="Slow, too: distance from that median in robust deviations.")
    ratio_overall: float = Field(1.058, gt=1, description="Ratio asked for over the last slow windows together.")
    peers_few: int = Field(16, ge=2, description="With fewer peers than this the ratio below is asked for instead.")
    ratio_few_peers: float = Field(1.065, gt=1, description="The same with few peers, who know less of each other.")
    noise_z: float = Field(
        5.0,
        gt=0,
        description="The excess must be so many times the error of a median of steps that vary like these.",
    )
    ratio_gross: float = Field(1.3, gt=1, description="Both halves of one window above this make a suspect at once.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.windows_slow_min > self.windows:
            raise ValueError("windows_slow_min must not be more than windows")
        if self.windows * self.window_steps > STRAGGLER_STEPS_MAX:
            raise ValueError(
                f"windows times window_steps must not be more than {STRAGGLER_STEPS_MAX}: older are not kept"
            )
        return self


class Xid(Section):
    burst_silence_seconds: float = Field(
        180.0, ge=1, description="Xids on a node are one incident until it is silent for longer than this."
    )
    echo_seconds: float = Field(30.0, ge=0, description="So soon after another fault an Xid may be an echo of it.")
    spread_nodes_min: int = Field(
        2, ge=2, description="On this many nodes of one job a code that can be the program's doing is the program's."
    )
    spread_wait_seconds: float = Field(
        3.0, ge=0, le=60, description="So long a gang's other nodes are waited for before such a code counts."
    )
    suspect_hours: float = Field(
        24.0, gt=0, le=168, description="Within this a program's error on the same GPU again and again is suspicious."
    )
    suspect_events_min: int = Field(2, ge=2, description="So often: errors of one code on one GPU, in different jobs.")
    suspect_users_min: int = Field(2, ge=1, description="Of so many users, who have not had it on another GPU.")
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
        self.rows  # noqa: B018  - a row that says too little is refused here
        return self


class Hardware(Section):
    gpus_per_node: int = Field(
        0, ge=0, description="GPUs that every node with GPUs should show. 0: as many as Slurm's Gres says of the node."
    )
    ports_per_node: int = Field(
        0,
        ge=0,
        description="Fabric ports that should be active on every node with GPUs: fewer make it suspect, also if they "
        "have been dead since it booted. 0: not looked at.",
    )
    gpu_missing_seconds: float = Field(
        60.0, ge=0, description="A GPU seen earlier in this boot may be away for so long: it may be being reset."
    )
    nvml_silent_seconds: float = Field(
        30.0, ge=10, description="A node whose driver has owed an answer for so long is suspect."
    )
    nvml_silent_stalled_seconds: float = Field(
        60.0,
        ge=10,
        description="A driver silent for so long is at fault, if a gang of ours there stands still for as long.",
    )
    slowed_share: float = Field(
        0.6,
        gt=0,
        le=1,
        description="A GPU that its hardware slowed down (heat, power brake) for this share of ten minutes is suspect.",
    )
    port_down_seconds: float = Field(
        240.0, ge=10, description="A fabric port that was in use and is down for so long is at fault."
    )
    port_down_stalled_seconds: float = Field(
        25.0, ge=10, description="The same, if a gang of ours there stands still for as long."
    )
    port_flap_seconds: float = Field(25.0, ge=10, description="A port that was down for so long and came back flapped.")
    port_flaps: int = Field(
        3,
        ge=2,
        description="A port that flapped so often is at fault until a person clears it, one that was down so often for "
        "shorter makes its node suspect...",
    )
    port_flaps_hours: float = Field(12.0, gt=0, description="... if it did so within this time.")
    together_nodes: int = Field(
        4,
        ge=2,
        description="So many nodes whose fabric or driver fails alike at once are not to blame, each for itself: a "
        "switch is, or what was installed everywhere. Recorded only.",
    )
    together_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Where so many nodes, and this share of all, look wrong alike, the site is so: recorded only.",
    )
    disk_free_share_min: float = Field(
        0.01, ge=0, lt=1, description="A node with less room, or fewer free inodes, on one of its disks is suspect."
    )
    clock_offset_seconds: float = Field(
        5.0, gt=0, description="A node whose clock differs from ours by more is recorded: its times mislead."
    )


class Lemon(Section):
    days: float = Field(28.0, gt=0, le=365, description="How far back a node's faults, losses and failures count.")
    score_min: float = Field(
        2.0, gt=0, description="Nodes with this score are told to a person, and taken last as spares: two faults do."
    )


class Hang(Section):
    seconds_min: float = Field(
        600.0,
        ge=1,
        description="A gang that stands still for less is never called hung. Longer than the first checkpoint takes: "
        "rank 0 writing it while the others wait looks like a hang.",
    )
    factor: float = Field(
        5.0, ge=1.5, description="It hangs after so many times the longest pause between two of its last steps."
    )
    first_step_seconds: float = Field(
        1800.0, gt=0, description="For a gang's first step, and the most that is waited for any."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_step_seconds < self.seconds_min:
            raise ValueError("first_step_seconds must not be less than seconds_min")
        return self


class Recovery(Section):
    step_timeout_seconds: float = Field(
        120.0, gt=0, description="A recovery step that is not seen done by then fails the recovery and pages."
    )
    first_step_timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="The same for the gang's first training step after the restore, and for what people have to do.",
    )
    launcher_timeout_seconds: float = Field(
        20.0,
        gt=0,
        description="A launcher that has not done as told by then is not waited for: its job moves to the pool.",
    )
    time_credit_minutes_max: int = Field(
        0,
        ge=0,
        description="By so many minutes in all a job's time limit may be raised for what faults within its allocation "
        "took of it, work since its last checkpoint included. 0: never; it moves what Slurm has planned for others.",
    )
    repeat_after_seconds: float = Field(
        2.0, gt=0, description="A step whose effect is not seen in Slurm after this is tried again."
    )
    seats_minutes: int = Field(60, ge=5, description="Life of a seat reservation, should we die and not come back.")

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
        description="Shell command that resets a node's GPUs, run there as an exclusive job of ours, such as "
        '`nvidia-smi --gpu-reset ${UNDERSTUDY_GPU:+-i "$UNDERSTUDY_GPU"}`: there stand the GPUs at fault, where they '
        "are known. Empty: that rung is left out.",
    )
    evidence_command: str = Field(
        "",
        description="Shell command that tells what a reset would wipe out, such as `nvidia-smi -q; dmesg`. "
        "It is run before the reset, in the same job, for half of its time at most.",
    )
    agent_run_directory: str = Field(
        "/run/understudy",
        pattern="^/",
        description="`run_directory` of the agents, `%n` for the node's name: the agent lets go of NVML for the reset.",
    )
    reset_timeout_seconds: float = Field(600.0, gt=0, description="So long a reset may take, until it has failed.")
    resets_max: int = Field(1, ge=0, description="Resets of one node within a week.")
    reboot: bool = Field(True, description="Whether nodes are rebooted (`scontrol reboot`; needs RebootProgram).")
    reboot_timeout_seconds: float = Field(
        1800.0, gt=0, description="A node that is not back by then has failed to reboot."
    )
    reboots_max: int = Field(2, ge=0, description="Reboots of one node within a week; then it is a person's.")
    quarantines_max: int = Field(
        3, ge=1, description="A node quarantined this often within a week is a person's, whatever the fault."
    )
    nodes_at_once_max: int = Field(2, ge=1, description="Nodes in repair or test at once.")
    cooldown_seconds: float = Field(
        60.0, ge=0, description="So long nothing is tried on a node after the last thing that was."
    )
    dead_node_wait_seconds: float = Field(
        1800.0, ge=0, description="So long a dead node may take to come back by itself, before a person is asked."
    )
    webhook: str = Field(
        "",
        pattern="^(https?://.+)?$",
        description="URL that gets a ticket (POST, JSON) when a person is needed. Empty: `/v1/tickets` alone.",
    )


class Validation(Section):
    enabled: bool = Field(
        False,
        description="Test a repaired node before it returns. Off: what was repaired waits for a person.",
    )
    user: str = Field(
        "root",
        pattern=r"^[A-Za-z0-9_][\w.-]*$",
        description="Whose our jobs on the node are: root, or whom the control plane runs as.",
    )
    selfcheck: str = Field(
        "understudy selfcheck --json",
        description="Left out, in words, where it is not installed. Where it does not say them itself it is given "
        "`--gpus`, as many as Slurm's Gres says, and for a suspect `--slow-ratio`.",
    )
    slow_ratio: float = Field(
        1.15,
        ge=0,
        description="A suspect fails its test if one of its GPUs takes so many times as long as the median of at least "
        "two others there; 0: it is only told.",
    )
    all_reduce_gbps_min: float = Field(
        0.0,
        ge=0,
        description='Least "Avg bus bandwidth" of `all_reduce_perf` over a node\'s GPUs, 8 to 256 MB, in GB/s; 0: that '
        "it runs is enough.",
    )
    nvlinks_active_min: int = Field(
        0, ge=0, description="NVLinks of each GPU that have to be up; 0: as many as of the node's GPU with most."
    )
    ports_active_min: int = Field(
        0, ge=0, description="InfiniBand and RoCE ports of a node with GPUs that have to be up; 0: not looked at."
    )
    dcgm_level: int = Field(2, ge=0, le=4, description="Level of `dcgmi diag`, where there is one; 0: never.")
    command: str = Field("", description="The site's own test, a shell command; it fails with any exit code but 0.")
    timeout_seconds: float = Field(3600.0, ge=60, description="So long the whole test may take, until it has failed.")
    output_directory: str = Field(
        "",
        description="Where the output of our jobs goes. Seen by nodes and control plane alike, its end is kept with "
        "the step. Empty: only its last 700 bytes are, which the job leaves in its Slurm comment.",
    )
    burn_in_hours: float = Field(
        24.0, ge=0, le=120, description="So long `understudy burn-in` repeats the test on a node."
    )
    burn_in_new_nodes: bool = Field(
        False, description="Whether a node that Slurm did not know before is burnt in, as soon as nobody uses it."
    )
    test_suspects: bool = Field(True, description="Whether a suspect node is tested as soon as nobody uses it.")
    suspects_at_once_max: int = Field(
        2, ge=1, description="Suspects in test at once. Tests and burn-ins that were asked for do not count."
    )
    probation_hours: float = Field(24.0, ge=0, description="So long a node is on probation after it has returned.")
    probation_weight: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="Weight in Slurm of a node on probation that is no spare: one above those of all other nodes makes "
        "jobs get it last. 0: weights are left alone.",
    )


class Config(Section):
    cluster: str = Field(min_length=1, description="Name of the Slurm cluster (ClusterName).")
    mode: Mode = Field(
        Mode.OBSERVE,
        description="`observe` (decides, writes down what it would do, touches nothing) or `act`.",
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
        raise ConfigError(f"{path}: cannot be read ({error}); give another with --config") from error
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
