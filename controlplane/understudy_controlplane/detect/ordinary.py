"""What ordinary thing looks like a fault, for each rule of detection, and what happens to it.

A rule that is added answers the same question here; `make docs` prints the answers. `*` is any end of a name. A suspect
stays in service, is no spare, and is tested once no job uses it, where the site lets nodes be tested.
"""

from __future__ import annotations

from collections.abc import Mapping

ORDINARY: Mapping[tuple[str, ...], str] = {
    ("hang.not_arrived", "hang.unexplained"): "A program counts its steps within an epoch, or "
    "evaluates, compiles or uploads for an hour: steps that end are progress, and a gang counts as hung by a multiple "
    "of its longest pause; while the ranks that the others wait for compute, by one of anything that the job ever did.",
    ("hang.silent",): "A program that marks no collectives evaluates for longer than ever before: it has a multiple of "
    "the longest time that it ever took.",
    ("hang.asked", "hang.shown"): "Rank 0 evaluates, compiles or saves while the others wait for it: a rank at work is "
    "named, and only the node of one that does nothing is a suspect.",
    (
        "hang.again",
    ): "A program hangs again and again, on the nodes of one rank or of any: hangs of one user count only "
    "where they have named a single node within the week, and two hangs of the same rank count once.",
    ("hang.still",): "The same, within that time: recorded. Before a first step, where no earlier start is known, it "
    "is listed.",
    ("hang.together", "hang.switch"): "A file server, a licence server or a switch is away: gangs that stopped "
    "together are not restarted; behind a failed switch they wait for it first.",
    ("silence.node_dead",): "The control plane's route to a node is away, or slurmctld missed one answer: a node with "
    "a job is dead only where its gang stands still with it, its own launcher has lost it, or Slurm shows for longer "
    "than one missed answer that it does not respond. An idle node is drained at once, and gets neither repair nor "
    "ticket while Slurm reaches it: it waits in the list of what needs a person.",
    ("silence.agent", "silence.never_heard", "silence.heard"): "An agent is upgraded or not installed yet, a node "
    "reboots: the node is unknown until its agent reports, and no job is touched.",
    (
        "repair.flapping",
    ): "The control plane's route to a node that works goes away three times within a week: the node "
    "gets a ticket instead of a repair, and no provider is asked for another one.",
    ("silence.mass", "silence.domain"): "A switch or the control plane's host reboots: nothing is concluded of many "
    "silent nodes; a rack has a minute to come back, and only gangs that stand still with it leave.",
    ("straggler.self_time", "straggler.clean"): "A rank has longer sequences, or writes the checkpoint: "
    "only what stands out window after window counts, only the node's own hardware confirms it, and the gang moves "
    "only when that costs less than to stay.",
    ("straggler.not_priced",): "The same for a gang that announces no checkpoints: it stays, because a move may cost "
    "all that it has done, and a person is notified.",
    (
        "straggler.together",
        "straggler.data_wait",
        "straggler.data_together",
        "straggler.transfers",
        "straggler.collectives",
    ): "A file server or a switch is busy, or one rank has the larger shard: the node is a suspect, or the domain is "
    "named; no gang moves.",
    ("straggler.gang", "straggler.gang_mfu"): "A training enters a phase with longer sequences: recorded.",
    ("stranded.gang",): "A node that counted as dead or slow is well again while its move was held up: where its gang "
    "trains on there, it stays until it ends.",
    (
        "stopped.launcher",
    ): "A launcher has too few nodes and asks for the requeue of its own job: only its gang is moved, "
    "and its node stays in service.",
    ("stopped.gang",): "Slurm or its owner requeues a job that ran on a node which has left service since: only a gang "
    "that pends is given other nodes.",
    ("seats.lost",): "An administrator drains a node on which a gang is about to start again: the gang gets another "
    "one, and has not begun to work.",
    ("xid.*", "sxid.*"): "A program divides by zero or reads outside its memory, which reports an Xid as well: by the "
    "class of its code, below.",
    ("xid.unread",): "A new driver writes a line in a new form: recorded.",
    ("gpu.lost", "nvml.lost", "nvml.reset_required", "nvml.recovery_action"): "An administrator resets a GPU: the "
    "driver refuses that while a job uses it. What the driver calls lost, or has to be reset, computes nothing.",
    ("gpus.missing",): "An administrator takes a GPU away for a virtual machine, or it is being reset: a gang that has "
    "finished steps there since stays to the end of its job.",
    ("gpus.replaced", "gpus.too_few"): "A GPU was changed, or slurm.conf names more than there are: the node is a "
    "suspect, and is tested once no job uses it.",
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
    ): "A driver is upgraded or starting, an agent may not open the devices: after a minute the node is a suspect.",
    ("driver.silent",): "NVML is slow while many processes start, or a driver is upgraded: a suspect; of many at once, "
    "recorded.",
    (
        "driver.silent_and_stalled",
    ): "The same while a gang there evaluates: driver and gang have to be silent for a minute.",
    ("memory.row_remap_failed", "memory.sram_threshold"): "An old flag of a GPU that an administrator keeps on: "
    "`observe_rules` keeps the rule from acting. The driver sets it for an uncorrectable error without a spare row.",
    ("memory.row_remap_pending",): "A GPU remaps a row, which is what rows are for: its jobs run to their end first.",
    ("memory.host_uncorrected",): "One error in a page that the kernel has taken out of use: a suspect.",
    (
        "memory.wear",
    ): "A GPU remaps a few rows early in its life: recorded; with `leave_worn` a gang leaves only where the move pays.",
    ("thermal.slowed",): "A warm hour, a power cap of the site: a suspect; only a rank that lags behind confirms it.",
    ("infiniband.port_down",): "A cable is moved, or its switch boots: ports that go down together are their switch. "
    "A gang that has finished steps since stays to the end of its job.",
    ("infiniband.port_flaps",): "A technician reseats a cable three times, or a switch reboots: as above.",
    ("infiniband.port_unsteady", "infiniband.too_few_ports", "infiniband.port_never_up"): "A cable that is being laid: "
    "a suspect.",
    ("fabric.other_port_down",): "A cable of the storage or management network is moved: recorded.",
    ("nvlink.down", "fabric.unhealthy", "fabric.not_registered", "fabric.module_hot", "fabric.manager_down"): "The "
    "Fabric Manager restarts after an upgrade: a suspect.",
    ("fabric.block",): "The NVLink switches of a rack are serviced: it is the block's incident; no spare is taken from "
    "there, and gangs leave only nodes with a fatal NVLink error.",
    ("kernel.*",): "A program prints what looks like a line of the driver: only the kernel's own lines are read, and "
    "most of them make the node a suspect for a day.",
    ("host.disk", "host.silent"): "A job fills /tmp, a file server is slow: a suspect.",
    ("processes.unkillable",): "A process with a terabyte of memory takes a minute to end: a suspect until it has.",
    ("processes.left",): "A job's slurmstepd crashes, and its processes live on: a suspect until they have ended. "
    "Services, users who have logged in, and jobs of which Slurm shows one there never count.",
    (
        "processes.outside",
    ): "A user has logged in and computes on an idle node: recorded, and no gang gets a spare there "
    "meanwhile. Display servers, and programs that only read NVML, never count.",
    ("processes.waiting",): "A file server is away, and programs wait for it: recorded.",
    ("host.clock", "agent.problems"): "A clock that is being set, a file that an agent may not read: recorded.",
    ("event.*",): "A driver reports an event of a healthy GPU, such as a change of its clocks: recorded.",
    ("inventory.gpu_moved", "inventory.faulty_gpu_moved"): "A repaired GPU comes back in another node: recorded.",
    ("drift.*",): "An update is under way, and some nodes have it already: recorded.",
    ("lemon.score",): "A node on which users test what crashes: recorded, and the last to be taken as a spare.",
    ("corruption.first_nan", "corruption.recompute"): "A program diverges, or is not deterministic: the node is a "
    "suspect only where it alone was first, twice.",
    ("launches.black_hole", "launches.clean"): "Two users' programs fail first on the same node: a suspect for an "
    "hour.",
    ("launches.crash", "launches.hang"): "A program crashes, and its launcher restarts it: no node is at fault; the "
    "job gets its time back.",
    ("launches.newcomer",): "A program fails by chance first on a node that has just joined: the gang moves once, and "
    "the node stays in service.",
    ("launches.order", "launches.selfcheck"): "A launcher of an older release, a self-check without room: recorded.",
    ("placement.*",): "A topology file is changed while gangs run, or nodes become free just after a start: recorded; "
    "the job's owner reads it.",
    ("prolog.drained",): "A site's own Prolog fails in the same second: the node is out of service already, and no job "
    "is there.",
    (
        "administration.*",
        "operator.cancel",
    ): "A person or another tool drains or resumes a node: the node is left to them, and the control plane follows.",
    ("signal.*",): "Another system sends a false alarm: a signal moves nothing unless the site has chosen that for its "
    "kind.",
    (
        "detection.*",
        "decision.*",
    ): "A detector meets what it does not know: the others go on, and a person is notified.",
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
