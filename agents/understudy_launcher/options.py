"""The command line of `understudy run`, checked whole before anything is started."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy_launcher import srun_options
from understudy_launcher.binding import Binding, CpuBind, cpus_of_task, gpus_of_task, is_cyclic, parse_cpu_bind
from understudy_launcher.container import ContainerError, parse_container
from understudy_launcher.first_check import COMMAND, SECONDS_MAX
from understudy_launcher.launch_result import OutOfSpares, Rules
from understudy_launcher.ports import port_range
from understudy_launcher.rank_output import PATH_CODES, OutputOptions

OPTIONS_MAX = 1000
"""The time that argparse takes grows with the square of their number."""

_SIGNALS = ("USR1", "USR2", "HUP", "URG", "WINCH", "TERM")


STDOUT_LOG, STDERR_LOG = "%j/launch_%L/%t/stdout.log", "%j/launch_%L/%t/stderr.log"
"""Files of each rank, below --log-dir."""
LOG_CODES = "%j/launch_%L/node_%n"
"""Folder of each torchrun, which makes folders for its ranks."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A program continues only where its arguments say so."""

    arguments: tuple[str, ...]
    """Appended to the command of each launch that begins while the file is there."""
    file: Path


class UsageError(Exception):
    """An option is missing, wrong or contradicts another; the message names it."""


@dataclass(frozen=True, slots=True)
class Options:
    command: tuple[str, ...]
    nodes: int
    procs_per_node: int | None
    """None: one for each GPU, or one where there are none; the job named no number of tasks for a node."""
    torchrun: bool
    run: str
    """Name of the run; empty: as in the environment, or by the job's name and folder."""
    keep_rank_order: bool
    """Nodes are replaced in place, and launches begin in Slurm's order of nodes."""
    resume: Resume | None
    preload: tuple[str, ...]
    selfcheck: str
    """Command that each node runs before the first launch; empty: none."""
    verdicts: Path | None
    progress_file: Path | None
    progress_seconds: float
    events: Path | None
    checkpoint_signal: signal.Signals
    hang_seconds: float
    """0: never."""
    in_process_seconds: float | None
    """Time for ranks to leave the old launch, to continue in the next one. None: every launch has new processes."""
    ports: range | None
    """Ports for the gang's rendezvous and for the launcher's connections. None: any free port."""
    output: OutputOptions
    binding: Binding
    srun: tuple[str, ...]
    """Options of srun, for the steps that start the seats."""
    seat_python: str
    """Python of the seats; empty: the launcher's own."""
    seat_seconds: float
    silence_seconds: float
    kill_seconds: float
    term_seconds: float
    rearm_seconds: float
    """Time from the start of a launch until standbys for the next one are started. Infinite: never."""
    slurm_poll_seconds: float
    wait_for_requeue_seconds: float
    wait_for_node_seconds: float
    rules: Rules

    @property
    def no_standbys(self) -> bool:
        return math.isinf(self.rearm_seconds)

    def ranks_on(self, gpus: int) -> int:
        return self.procs_per_node or max(1, gpus // (self.binding.gpus_per_task or 1))


def parse(arguments: Sequence[str] | None) -> Options:
    """Ends the process on a usage error, as argparse does (exit code 2). Raises UsageError."""
    own, srun = srun_options.take_out(sys.argv[1:] if arguments is None else arguments)
    until = own.index("--") if "--" in own else len(own)
    options = sum(word.startswith("-") for word in own[:until])
    if options > OPTIONS_MAX:
        raise UsageError(f"{options} options stand before `--`, and {OPTIONS_MAX} may: the command's belong behind it")
    given = _parser().parse_args(own)
    command = tuple(given.command[1:] if given.command[:1] == ["--"] else given.command)
    if not command:
        raise UsageError("no command given; put it last, after `--`")
    if command[0].startswith("-"):
        raise UsageError(
            f"the command begins with an option, {command[0]}: after `--` the program comes first; in place of "
            "--multi-prog start a script that chooses its program by $RANK"
        )
    _check_program(command)
    if given.nodes < 1:
        raise UsageError(f"--nodes {given.nodes}: a gang has one node at least")
    nodes_min = given.nodes if given.min_nodes is None else given.min_nodes
    if not 1 <= nodes_min <= given.nodes:
        raise UsageError(f"--min-nodes {nodes_min}: between 1 and --nodes {given.nodes}")
    if given.launches_without_progress < 1:
        raise UsageError("--launches-without-progress: at least 1")
    if given.hang_seconds < 0:
        raise UsageError(f"--hang-seconds {given.hang_seconds:g}: above 0")
    try:
        contained = parse_container(command) is not None
    except ContainerError as error:
        raise UsageError(str(error)) from error
    if contained and given.torchrun:
        raise UsageError(
            f"--torchrun with {command[0]}: the launcher starts each rank in a container of its own; leave --torchrun "
            "out, or start the seats in a container (--srun-args)"
        )
    if given.in_process and given.torchrun:
        raise UsageError(
            "--in-process with --torchrun: torchrun always starts new worker processes; leave one of the two out"
        )
    try:
        srun_options.check(srun)
    except srun_options.NotForSrun as error:
        raise UsageError(str(error)) from error
    return Options(
        command=command,
        nodes=given.nodes,
        procs_per_node=_processes(given.procs_per_node, given.torchrun),
        torchrun=given.torchrun,
        run=given.run,
        keep_rank_order=given.keep_rank_order,
        selfcheck=given.selfcheck_command if given.selfcheck or os.environ.get("UNDERSTUDY_SELFCHECK") == "1" else "",
        resume=_resume(given),
        preload=tuple(filter(None, given.preload.split(","))),
        verdicts=Path(given.verdicts) if given.verdicts else None,
        progress_file=given.progress_file,
        progress_seconds=given.progress_seconds,
        events=given.events,
        checkpoint_signal=signal.Signals[f"SIG{given.checkpoint_signal}"],
        hang_seconds=given.hang_seconds,
        in_process_seconds=given.in_process_seconds if given.in_process else None,
        ports=_ports(given.port_range),
        output=_output(given),
        binding=_binding(given),
        srun=srun,
        seat_python=given.seat_python,
        seat_seconds=given.seat_seconds,
        silence_seconds=given.silence_seconds,
        kill_seconds=given.kill_seconds,
        term_seconds=given.term_seconds,
        rearm_seconds=given.rearm_seconds,
        slurm_poll_seconds=given.slurm_poll_seconds,
        wait_for_requeue_seconds=given.wait_for_requeue,
        wait_for_node_seconds=given.wait_for_node,
        rules=Rules(nodes_min, OutOfSpares(given.when_out_of_spares), given.launches_without_progress),
    )


_STARTERS = {
    **dict.fromkeys(
        ("mpirun", "mpiexec", "mpiexec.hydra", "prun"),
        "starts ranks through Slurm's PMI, which `understudy run` does not offer",
    ),
    **dict.fromkeys(
        ("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        "every rank would start torchrun: write `understudy run … --torchrun -- python train.py`",
    ),
    "accelerate": "every rank would start accelerate: write `-- python train.py`; Accelerate reads RANK and "
    "WORLD_SIZE, and what its configuration file says has to be in the program, such as Accelerator(mixed_precision=…)",
    "deepspeed": "every rank would start DeepSpeed's launcher: write `-- python train.py`; "
    "deepspeed.init_distributed() reads RANK and WORLD_SIZE",
    "srun": "every rank would start srun: name the training program after `--` alone",
}
"""Programs that start ranks themselves, and what to write instead."""


def _check_program(command: Sequence[str]) -> None:
    """Raises UsageError."""
    program = Path(command[0]).name
    # Python's own options: what stands behind the first other word is the script's.
    own = list(itertools.takewhile(lambda word: word.startswith("-"), command[1:]))
    if re.fullmatch(r"python[\d.]*", program) and own[-1:] == ["-m"] and len(command) > len(own) + 1:
        module = command[len(own) + 1]
        program = "accelerate" if module.startswith("accelerate.") else module
    if program in _STARTERS:
        raise UsageError(f"{program}: {_STARTERS[program]}")


def _resume(given: argparse.Namespace) -> Resume | None:
    if not given.resume_args and not given.resume_if:
        return None
    if not given.resume_args or not given.resume_if:
        raise UsageError(
            "--resume-args and --resume-if belong together: the first launch has no checkpoint, and others have"
        )
    if given.in_process:
        raise UsageError(
            "--resume-args with --in-process: a rank that goes on in its process keeps its arguments; leave one out"
        )
    try:
        words = tuple(shlex.split(given.resume_args))
    except ValueError as error:
        raise UsageError(f"--resume-args {given.resume_args}: {error}") from error
    try:
        return Resume(words, Path(given.resume_if).expanduser())
    except RuntimeError as error:
        raise UsageError(f"--resume-if {given.resume_if}: {error}") from error


def _processes(text: str, torchrun: bool) -> int | None:
    """The job's --ntasks-per-node counts, as it does for srun; torchrun is one task itself."""
    if text == "auto":
        tasks = os.environ.get("SLURM_NTASKS_PER_NODE", "")
        return int(tasks) if tasks.isdecimal() and int(tasks) and not torchrun else None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--procs-per-node {text}: a number above 0, or auto")
    return int(text)


def _ports(text: str) -> range | None:
    try:
        return port_range(text) if text else None
    except ValueError as error:
        raise UsageError(f"--port-range {text}: first and last, as in 20000-20999") from error


def _binding(given: argparse.Namespace) -> Binding:
    """What the job's environment has was for srun: the same as an option to it."""
    if given.torchrun:
        if given.cpu_bind or given.gpus_per_task:
            raise UsageError(
                "--cpu-bind and --gpus-per-task with --torchrun: torchrun starts the ranks, and each finds all CPUs "
                "and GPUs of its node; leave them out"
            )
        return Binding()
    try:
        bind = parse_cpu_bind(given.cpu_bind) if given.cpu_bind else CpuBind()
    except ValueError as error:
        raise UsageError(f"--cpu-bind {given.cpu_bind}: {error}") from error
    wanted = given.gpus_per_task
    if wanted and wanted != "all" and not (wanted.isdecimal() and int(wanted)):
        raise UsageError(f"--gpus-per-task {wanted}: a number above 0, or all")
    each = gpus_of_task(os.environ) if not wanted else 0 if wanted == "all" else int(wanted)
    return Binding(bind, cpus_of_task(os.environ), is_cyclic(os.environ), each)


def _output(given: argparse.Namespace) -> OutputOptions:
    if given.log_dir and (given.output or given.error):
        raise UsageError("--log-dir names the files of both streams: leave --output and --error out")
    if given.tee and not (given.log_dir or given.output or given.error):
        raise UsageError("--tee: without --log-dir, --output or --error all goes to the job's output")
    if given.local_ranks_filter and not re.fullmatch(r"\d+(,\d+)*", given.local_ranks_filter):
        raise UsageError(f"--local-ranks-filter {given.local_ranks_filter}: numbers, with commas, as in 0,1")
    for pattern in filter(None, (given.output, given.error, given.log_dir)):
        unknown = PATH_CODES.sub("", pattern)
        if "%" in unknown:
            raise UsageError(f"{pattern}: of codes with % it may have %A %a %J %j %L %N %n %s %t %u %x and %%")
    log_dir = given.log_dir.rstrip("/") + "/" if given.log_dir else ""
    if given.torchrun and (log_dir or given.local_ranks_filter):
        logs = [f"--log-dir={log_dir}{LOG_CODES}", "--redirects=3", f"--tee={given.tee}"] if log_dir else []
        only = [f"--local-ranks-filter={given.local_ranks_filter}"] if given.local_ranks_filter else []
        return OutputOptions(given.output, given.error, label=given.label, torchrun=(*logs, *only))
    shown = given.local_ranks_filter
    return OutputOptions(
        log_dir + STDOUT_LOG if log_dir else given.output,
        log_dir + STDERR_LOG if log_dir else given.error,
        given.tee,
        given.label,
        frozenset(map(int, shown.split(","))) if shown else None,
    )


_BOUNDS = {
    "silence-seconds": (3.0, "a node silent for this time is gone"),
    "kill-seconds": (3.0, "ranks that outlive SIGKILL for this time are stuck"),
    "in-process-seconds": (5.0, "for ranks to leave the old launch; then they are killed"),
    "term-seconds": (5.0, "between SIGTERM and SIGKILL at the end"),
    "seat-seconds": (60.0, "for a node to answer at the start"),
    "rearm-seconds": (10.0, "after a launch, until new standbys"),
    "slurm-poll-seconds": (15.0, "between looks at node states; 0: never"),
}
"""Option → its default, and what it bounds."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="understudy run",
        description="Run a gang on N nodes of an allocation that has more, and restart it when a node fails.",
        epilog="The rest of the line, after --, is the command that every rank runs.",
    )
    add = parser.add_argument
    add("--nodes", type=int, required=True, metavar="N", help="nodes of the gang; the allocation's others are spares")
    add(
        "--procs-per-node",
        default="auto",
        metavar="K",
        help="ranks on each node; auto (default): as --ntasks-per-node says, else one a GPU, or one",
    )
    add(
        "--keep-rank-order",
        action="store_true",
        help="replace nodes in place, also where another order keeps groups of ranks in one rack",
    )
    add("--torchrun", action="store_true", help="one torchrun on each node, which starts the ranks there")
    add(
        "--cpu-bind",
        default="",
        metavar="HOW",
        help="CPUs of each rank, as srun: none, cores, threads, sockets, ldoms, map_cpu:LIST, mask_cpu:LIST, "
        "map_ldom:LIST, mask_ldom:LIST (default: cores, where the job has --cpus-per-task)",
    )
    add(
        "--gpus-per-task",
        default="",
        metavar="K",
        help="GPUs that each rank sees, as srun; all: those of its node (default: as the job has it, else all)",
    )
    add(
        "--srun-args",
        default="",
        metavar="OPTION",
        help="options up to -- are passed on to srun, which starts the seats: --srun-args --container-image=x -- "
        "python train.py",
    )
    add(
        "--seat-python",
        default="",
        metavar="PATH",
        help="Python with Understudy on the nodes, or in their container (default: the one that runs this command)",
    )
    add(
        "--in-process",
        action="store_true",
        help="ranks that can, go on in the next launch without a new process; worth it with gloo, for NCCL's ranks do "
        "not leave a broken collective in time and are started again",
    )
    add("--run", default="", metavar="NAME", help="of the training that this job continues, as UNDERSTUDY_RUN is")
    add(
        "--resume-args",
        default="",
        metavar="ARGUMENTS",
        help="appended to the command where the file of --resume-if is there: --resume-args=--init_from=resume",
    )
    add("--resume-if", default="", metavar="FILE", help="the program's checkpoint, looked for before each launch")
    add("--preload", default="", metavar="MODULES", help="imported in advance, with commas: torch,numpy")
    add(
        "--selfcheck",
        action="store_true",
        help=f"each node is checked before the first launch, for {SECONDS_MAX:g} s at most; a spare replaces one that "
        "fails",
    )
    add(
        "--selfcheck-command",
        default=COMMAND,
        metavar="COMMAND",
        help="exit code 1: failed (default: a short one)",
    )
    add("--when-out-of-spares", default="pool", choices=[one.value for one in OutOfSpares], help="default: pool")
    add("--min-nodes", type=int, metavar="M", help="no fewer, for `shrink` and where the site shrinks (default: N)")
    add("--wait-for-requeue", type=float, default=60.0, metavar="SECONDS", help="for `pool` (default: 60)")
    add("--wait-for-node", type=float, default=600.0, metavar="SECONDS", help="for `wait` (default: 600)")
    add("--launches-without-progress", type=int, default=3, metavar="COUNT", help="then the job ends (default: 3)")
    add("--progress-file", type=Path, metavar="FILE", help="its last whole number is the newest step")
    add(
        "--progress-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="without a file: a launch that lives for this time counts as progress",
    )
    add(
        "--hang-seconds",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="without a new step for this time it hangs; longer than a step with a checkpoint (default: 0, never)",
    )
    environment_verdicts = os.environ.get("UNDERSTUDY_VERDICTS", "")
    add("--verdicts", default=environment_verdicts, metavar="PATH", help="file or directory that names bad nodes")
    add("--port-range", default="", metavar="A-B", help="TCP ports to use on all nodes (default: 20000-31999)")
    add(
        "--checkpoint-signal",
        default="USR1",
        choices=_SIGNALS,
        help="Slurm's warning of the end; TERM: at a preemption",
    )
    output = parser.add_argument_group("output of the ranks").add_argument
    output("-o", "--output", default="", metavar="FILE", help="as srun: %%t rank, %%N node, %%j job; also %%L launch")
    output("-e", "--error", default="", metavar="FILE", help="standard error (default: as --output)")
    output(
        "--log-dir", default="", metavar="FOLDER", help=f"both, in files {STDOUT_LOG.replace('%', '%%')} and stderr.log"
    )
    output(
        "--tee",
        type=int,
        default=0,
        choices=range(4),
        metavar="S",
        help="to the job's output, too: 1 stdout, 2 stderr, 3 both",
    )
    output("-l", "--label", action="store_true", help="each line of the job's output begins with its rank")
    output("--local-ranks-filter", default="", metavar="R", help="the job's output has these local ranks alone: 0,1")
    add("--events", type=Path, metavar="FILE", help="append what happens, a JSON object a line")
    bounds = parser.add_argument_group("bounds")
    for name, (seconds, meaning) in _BOUNDS.items():
        bounds.add_argument(f"--{name}", type=float, default=seconds, metavar="S", help=f"{meaning} ({seconds:g})")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
