"""Sections for detection: when a node, a rank or a gang counts as faulty."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Self

from pydantic import Field, model_validator

from understudy_controlplane.config.section import Section
from understudy_controlplane.xid_policy import Policy, RowOverride, default_policy

STRAGGLER_STEPS_MAX = 100
"""The control plane keeps 128 steps of each rank; the rest is for ranks that report late."""


class Silence(Section):
    FIXED = frozenset({"silent_after_seconds", "domain_wait_seconds", "mass_share"})

    silent_after_seconds: float = Field(4.0, ge=1, description="Time without a report after which a node is unknown.")
    dead_after_seconds: ClassVar[float] = 6.0
    """Time without a report after which a node is dead, if its slurmd does not answer either and its job makes no
    progress.
    """
    dead_unconfirmed_seconds: float | None = Field(
        None,
        gt=0,
        description="Time of silence after which a spare is dead, or a node with a job that no gang or launcher "
        "confirms. Not set: 120 s, and Slurm has to show for 20 s more than a third of SlurmdTimeout that"
        " the node does not respond. Set: whatever Slurm shows. At most 10 s less than SlurmdTimeout.",
    )
    stopped_seconds: ClassVar[float] = 600.0
    """The same for a node whose agent announced its stop, as for an upgrade, and whose gang does not stand still."""
    slurmd_silent_seconds: ClassVar[float] = 1.0
    """Time for which a slurmd must not answer: one lost answer is not enough."""
    domain_wait_seconds: float = Field(
        60.0,
        ge=0,
        description="Time that a domain of the topology, such as a rack, has to come back when its nodes fell silent, "
        "or their ports went down, together; after that gangs leave it.",
    )
    mass_nodes_min: ClassVar[int] = 3
    """Nodes silent at once, together with the share below, from which the cause is taken to be the network or the
    control plane.
    """
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
    FIXED = frozenset({"window_steps", "windows", "ratio", "move_when_it_pays"})

    window_steps: int = Field(20, ge=8, le=40, description="Steps in a window; their median is judged as one value.")
    windows: int = Field(4, ge=1, le=8, description="Consecutive windows that are compared.")
    windows_slow_min: ClassVar[int] = 3
    """Slow windows among these that make a node suspect."""
    ratio: float = Field(
        1.05,
        gt=1,
        description="A window is slow when its self time, over the median of peers of the same role, is above this "
        "ratio...",
    )
    robust_z: ClassVar[float] = 3.5
    """... and its distance from that median is above this many robust deviations."""
    ratio_overall: ClassVar[float] = 1.058
    """Ratio that the last slow windows together must exceed."""
    peers_few: ClassVar[int] = 16
    """Number of peers below which `ratio_few_peers` applies."""
    ratio_few_peers: ClassVar[float] = 1.065
    """Ratio that replaces `ratio_overall` where there are few peers."""
    noise_z: ClassVar[float] = 5.0
    """Least excess, as a multiple of the error of a median of steps that vary as these do."""
    ratio_gross: ClassVar[float] = 1.3
    """Ratio above which, in both halves of one window, a node is suspect at once."""
    move_when_it_pays: bool = Field(
        True,
        description="Move a gang off a slow node when the slowness has cost as much as the move "
        "([stragglers](straggler.md#rent-or-buy)). Off: at once.",
    )
    compute_test_confirms: bool = Field(
        False,
        description="A slow rank is confirmed where its GPU is slower than others in the test between steps "
        "(`watch_compute`), which the process of the user measures.",
    )
    mfu_expected: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="MFU that gangs should reach: a gang that stays a fifth below it is recorded "
        "([stragglers](straggler.md#a-gang-that-is-slow-as-a-whole)). 0: not compared.",
    )
    pace_ratio: ClassVar[float] = 1.035
    """`ratio` if the work of each step is known and its times are judged without it."""
    pace_ratio_overall: ClassVar[float] = 1.04
    """`ratio_overall` for times without work."""
    pace_ratio_few_peers: ClassVar[float] = 1.05
    """`ratio_few_peers` for times without work."""
    pace_ratio_gross: ClassVar[float] = 1.08
    """`ratio_gross` for times without work."""

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
    burst_silence_seconds: ClassVar[float] = 180.0
    """Time without an Xid on a node after which the next Xid begins a new incident."""
    echo_seconds: ClassVar[float] = 30.0
    """Time after another fault within which an Xid may be its echo."""
    spread_nodes_min: ClassVar[int] = 2
    """Nodes of one job with the same code from which the program is the cause, where the code allows for that."""
    spread_wait_seconds: ClassVar[float] = 3.0
    """Time to wait for the other nodes of the gang before such a code counts."""
    suspect_hours: ClassVar[float] = 24.0
    """Time within which repeated program errors on the same GPU make it suspect."""
    suspect_events_min: ClassVar[int] = 2
    """Errors of one code on one GPU, in different jobs, that make it suspect."""
    suspect_users_min: ClassVar[int] = 2
    """Users among these jobs who did not have the error on another GPU."""
    policy: dict[int, RowOverride] = Field(
        {},
        description="Rows of the policy for Xids that this site changes, such as `[xid.policy.94]` with `class`, "
        "`repair` or both, and a `reason` ([codes](xid-policy.md)).",
    )
    switch_policy: dict[int, RowOverride] = Field(
        {}, description="The same for SXids of NVSwitches, such as `[xid.switch_policy.20034]`."
    )

    kernel_policy: dict[str, RowOverride] = Field(
        {},
        description="The same for lines of the kernel log without a code, such as `[xid.kernel_policy.soft_lockup]`.",
    )

    @cached_property
    def rows(self) -> Policy:
        """The whole policy, with what this site changes."""
        changed = default_policy().with_overrides(self.policy, self.switch_policy)
        return changed.with_kernel_overrides(self.kernel_policy)

    @model_validator(mode="after")
    def _rows_are_whole(self) -> Self:
        self.rows  # noqa: B018  - reading it refuses an incomplete row
        return self


class Hardware(Section):
    FIXED = frozenset({"port_flaps", "together_nodes", "together_share", "nvml_silent_seconds"})

    ports_per_node: int = Field(
        0,
        ge=0,
        description="Fabric ports for training that should be active on every node with GPUs; with fewer it is "
        "suspect, and fails its validation. 0: not checked.",
    )
    baseline: dict[str, dict[str, str]] = Field(
        {},
        description="Versions that nodes should have, by their Gres in Slurm (`*`: all nodes), such as "
        '`baseline."gpu:h100:8" = {driver = "580.95", VBIOS = "96.00"}`. A node with another one is '
        "recorded.",
    )
    gpu_missing_seconds: ClassVar[float] = 60.0
    """Time for which a GPU seen earlier in this boot may be missing, as during a reset."""
    gpu_unreadable_seconds: ClassVar[float] = 60.0
    """Time for which NVML can read fewer GPUs than the node has, after which the node is suspect. It is no spare from
    the first moment.
    """
    nvml_silent_seconds: float = Field(
        30.0, ge=10, description="Time without an answer from the driver after which the node is suspect."
    )
    nvml_silent_stalled_seconds: ClassVar[float] = 60.0
    """Time without an answer from the driver after which it is at fault, if a managed gang there has stood still for
    the same time.
    """
    slowed_share: ClassVar[float] = 0.6
    """Share of ten minutes for which the hardware slowed a GPU (heat, power brake) that makes it suspect."""
    port_down_seconds: ClassVar[float] = 240.0
    """Time for which a fabric port that was in use is down, after which it is at fault. A gang that trains on there
    stays to the end of its job.
    """
    port_down_stalled_seconds: ClassVar[float] = 25.0
    """The same, if a managed gang there has stood still for the same time."""
    port_flap_seconds: ClassVar[float] = 25.0
    """Shortest time down that counts as a flap when the port comes back."""
    port_flaps: int = Field(
        3,
        ge=2,
        description="Flaps after which a port is at fault until a person clears it; the same number of shorter "
        "interruptions makes its node suspect...",
    )
    port_flaps_hours: ClassVar[float] = 12.0
    """... within this time."""
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
    disk_free_share_min: ClassVar[float] = 0.01
    """Share of free room or free inodes on a disk below which the node is suspect."""
    leave_worn: bool = Field(
        False,
        description="Take a node out of service whose GPU memory wears out faster and faster (`memory.wear`), before "
        "it fails: right after a checkpoint of its gang, where a move is expected to cost less than the "
        "failure. How likely a failure is, is a guess.",
    )
    clock_offset_seconds: ClassVar[float] = 5.0
    """Difference between the clocks of a node and of the control plane above which it is recorded: the node's times
    mislead.
    """


class Lemon(Section):
    FIXED = frozenset({"days", "score_min"})

    days: float = Field(28.0, gt=0, le=365, description="Time over which a node's faults, losses and failures count.")
    score_min: float = Field(
        2.0,
        gt=0,
        description="Score from which a person is notified of a node and it is taken last as a spare; two faults "
        "reach it.",
    )


class Hang(Section):
    FIXED = frozenset({"factor", "together_gangs", "together_share"})

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
        1800.0,
        gt=0,
        description="Time for a gang's first step, also after a restore, and the longest time to wait for any step.",
    )
    section_seconds: ClassVar[float] = 7200.0
    """Time for a section that the training names (`monitor.section`), such as an evaluation, while no earlier one is
    known. Later: the longest one times `factor`, and no less than `seconds_min`.
    """
    working_factor: ClassVar[float] = 4.0
    """Multiple of its time limit for a gang whose ranks are not known to wait, while a GPU of it works: it may evaluate
    or compile.
    """
    together_gangs: int = Field(
        3,
        ge=2,
        description="Managed gangs that stop at the same time, from which they are taken to have one cause. None of "
        "them is restarted. Gangs that all are of one other user say nothing about a gang.",
    )
    together_share: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of the running managed gangs, together with that number, from which the control plane does "
        "only what an operator requests and what a node's own hardware proves. The gangs of one user are no such cause "
        "while others run gangs.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_step_seconds < self.seconds_min:
            raise ValueError("first_step_seconds must not be less than seconds_min")
        return self
