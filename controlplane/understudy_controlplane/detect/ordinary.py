"""What ordinary thing looks like a fault, for each rule of detection, and what happens to it.

A rule that is added answers the same question here; `make docs` prints the answers. `*` is any end of a name. A suspect
stays in service, is no spare, and is tested once no job uses it, where the site lets nodes be tested.
"""

from __future__ import annotations

from collections.abc import Mapping

ORDINARY: Mapping[tuple[str, ...], str] = {
    ("hang.not_arrived", "hang.unexplained"): (
        "Steps that count within an epoch, an evaluation, a compilation, an upload: steps that end are progress, and "
        "the limit is a multiple of the gang's longest pause; while ranks that others wait for compute, of anything "
        "that the job ever did."
    ),
    ("hang.silent",): (
        "An evaluation without marked collectives: the limit is a multiple of the longest that it ever took."
    ),
    ("hang.asked", "hang.shown"): (
        "Rank 0 evaluates, compiles or saves: a rank at work is named, and its node is no suspect."
    ),
    ("hang.again",): (
        "One program hangs again and again: it counts only where it has named a single node within the week, and the "
        "same rank counts once."
    ),
    ("hang.still",): (
        "The same, within that time: recorded; before a first step, or while a rank that is waited for computes, it is "
        "listed."
    ),
    ("hang.together", "hang.switch"): (
        "A file server, a licence server or a switch is away: gangs that stopped together are not restarted."
    ),
    ("silence.node_dead",): (
        "The control plane's route is away, or slurmctld missed one answer: a node with a job is dead only where its "
        "gang stands still, its launcher has lost it, or Slurm shows it for longer. An idle node is drained, with "
        "neither repair nor ticket while Slurm reaches it."
    ),
    ("silence.agent", "silence.never_heard", "silence.heard"): (
        "An agent is upgraded, a node reboots: unknown until its agent reports; no job is touched."
    ),
    ("repair.flapping",): (
        "The control plane's route to a node goes away three times within a week: a ticket instead of a repair."
    ),
    ("silence.mass", "silence.domain"): (
        "A switch or the control plane's host reboots: nothing is concluded of many silent nodes; a rack has a minute "
        "to come back."
    ),
    ("straggler.self_time", "straggler.clean"): (
        "Longer sequences, a checkpoint: only what stands out window after window counts, only the node's own hardware "
        "confirms it, and the gang moves only where that pays."
    ),
    ("straggler.not_priced",): "A slow gang that announces no checkpoints: it stays, and a person is notified.",
    (
        "straggler.together",
        "straggler.data_wait",
        "straggler.data_together",
        "straggler.transfers",
        "straggler.collectives",
    ): ("A busy file server or switch, a larger shard: the node is a suspect, or the domain is named; no gang moves."),
    ("straggler.gang", "straggler.gang_mfu"): "A phase with longer sequences: recorded.",
    ("stranded.gang",): "A node is well again while its move was held up: where its gang trains on there, it stays.",
    ("stopped.launcher",): "A launcher asks for the requeue of its own job: its node stays in service.",
    ("stopped.gang",): "Slurm or its owner requeues a job: only a gang that pends is given other nodes.",
    ("seats.lost",): "An administrator drains a node on which a gang is about to start: it gets another one.",
    ("xid.*", "sxid.*"): "A program divides by zero: by the class of its code, below.",
    ("xid.unread",): "A new driver writes a new form: recorded.",
    ("gpu.lost", "nvml.lost", "nvml.reset_required", "nvml.recovery_action"): (
        "An administrator resets a GPU: the driver refuses that while a job uses it."
    ),
    ("gpus.missing",): "A GPU is taken away or reset: a gang that has finished steps there since stays.",
    ("gpus.replaced", "gpus.too_few"): "A GPU was changed, or slurm.conf names more than there are: a suspect.",
    (
        "nvml.unreadable",
        "nvml.no_gpu",
        "nvml.no_permission",
        "nvml.no_power",
        "nvml.not_loaded",
        "nvml.no_library",
        "nvml.corrupted_inforom",
        "nvml.driver_mismatch",
        "nvml.not_ready",
    ): ("A driver is upgraded or starting: a suspect after a minute."),
    ("driver.silent",): "NVML is slow while many processes start: a suspect; of many at once, recorded.",
    ("driver.silent_and_stalled",): "The same while a gang evaluates: both have to be silent for a minute.",
    ("memory.row_remap_failed", "memory.sram_threshold"): (
        "An old flag of a GPU that an administrator keeps on: use `observe_rules`."
    ),
    ("memory.row_remap_pending",): "Rows are there to be remapped: its jobs run to their end first.",
    ("memory.host_uncorrected",): "One error in a page that the kernel has taken out of use: a suspect.",
    ("memory.wear",): (
        "A few rows remapped early in a GPU's life: recorded; with `leave_worn` a gang leaves only where that pays."
    ),
    ("thermal.slowed",): "A warm hour, a power cap: a suspect; only a rank that lags behind confirms it.",
    ("infiniband.port_down",): (
        "A cable is moved, a switch boots: ports that go down together are their switch. A gang that has finished steps"
        " since stays."
    ),
    ("infiniband.port_flaps",): "A cable is reseated three times, a switch reboots: as above.",
    ("infiniband.port_unsteady", "infiniband.too_few_ports", "infiniband.port_never_up"): (
        "A cable that is being laid: a suspect."
    ),
    ("fabric.other_port_down",): "A cable of the storage network is moved: recorded.",
    ("nvlink.down", "fabric.unhealthy", "fabric.not_registered", "fabric.module_hot", "fabric.manager_down"): (
        "The Fabric Manager restarts: a suspect."
    ),
    ("fabric.block",): (
        "NVLink switches are serviced: the block's incident; gangs leave only nodes with a fatal NVLink error."
    ),
    ("kernel.*",): "A program prints what looks like a driver's line: only the kernel's own lines are read.",
    ("host.disk", "host.silent"): "A job fills /tmp, a file server is slow: a suspect.",
    ("processes.unkillable",): "A large process takes a minute to end: a suspect until it has.",
    ("processes.left",): (
        "A slurmstepd crashes, and its processes live on: a suspect until they have ended. Services and users who have "
        "logged in never count."
    ),
    ("processes.outside",): (
        "A user computes on an idle node outside of Slurm: recorded, and no gang gets a spare there. After ten "
        "minutes another node joins the pool, and a need names it. Services, display servers and programs that only "
        "read NVML never count."
    ),
    ("processes.waiting",): "A file server is away: recorded.",
    ("host.clock", "agent.problems"): "A clock that is being set, a file that an agent may not read: recorded.",
    ("event.*",): "An event of a healthy GPU, such as a change of its clocks: recorded.",
    ("inventory.gpu_moved", "inventory.faulty_gpu_moved"): "A repaired GPU comes back in another node: recorded.",
    ("drift.*",): "An update is under way: recorded.",
    ("lemon.score",): "A node on which users test what crashes: recorded, and taken last as a spare.",
    ("corruption.first_nan", "corruption.recompute"): (
        "A program diverges, or is not deterministic: a suspect only where the node alone was first, twice."
    ),
    ("launches.black_hole", "launches.clean"): (
        "Two users' programs fail first on the same node: a suspect for an hour."
    ),
    ("launches.crash", "launches.hang"): "A program crashes: no node is at fault; the job gets its time back.",
    ("launches.newcomer",): (
        "A program fails first on a node that has just joined: the gang moves once, and the node stays in service."
    ),
    ("launches.order", "launches.selfcheck"): "An older launcher, a self-check without room: recorded.",
    ("placement.*",): "Nodes become free just after a start: recorded; the job's owner reads it.",
    ("prolog.drained",): "A site's own Prolog fails in the same second: the node is out of service already.",
    ("administration.*", "operator.cancel"): "A person or another tool drains or resumes a node: it is left to them.",
    ("signal.*",): (
        "Another system sends a false alarm: it moves nothing unless the site has chosen that for its kind."
    ),
    ("detection.*", "decision.*"): (
        "A detector meets what it does not know: the others go on, and a person is notified."
    ),
}
"""Answers of rules that answer alike."""

OF_CLASS: Mapping[str, str] = {
    "hardware": "None is known: the driver reports that the GPU cannot continue. A code that a program can cause, on "
    "several nodes of its job at once, is the program's.",
    "drain": "Errors that the GPU has contained: jobs run to their end, and the node is repaired then.",
    "application": "The program's own fault: no node is at fault.",
    "suspect": "A line that a boot, a reset or a scan writes as well: the node is a suspect for a day.",
    "record": "Nothing follows, but for codes that repeat on one GPU within a day.",
}
"""The same for the classes of the policy's rows."""
