"""`understudy run`: reads the options, looks where it is, runs the launcher."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from understudy_launcher.agent_client import AgentLine
from understudy_launcher.event_log import Events
from understudy_launcher.guardian import Inheritance, guard
from understudy_launcher.hub import Hub, open_server
from understudy_launcher.launcher import EXIT_CANNOT_START, Launcher
from understudy_launcher.node_list import counted
from understudy_launcher.nodes import FileVerdicts, Nodes
from understudy_launcher.open_files import NotEnoughFiles, OpenFiles, have_files_for
from understudy_launcher.options import Options, UsageError, parse
from understudy_launcher.progress import FileProgress, HookProgress, Progress, TimeAlive
from understudy_launcher.rank_socket import socket_path
from understudy_launcher.signals import handled
from understudy_launcher.slurm import Allocation, NoAllocation, NodeStates, asked_for_no_kill, read_allocation
from understudy_launcher.slurm_steps import Steps
from understudy_wire.tls import JobKey, make_key

EXIT_USAGE = 2
VERDICT_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parse(arguments)
        allocation = read_allocation(os.environ)
        check_size(options, allocation)
        files = have_files_for(len(allocation.nodes))
        key = make_key()
        if options.events is not None:
            options.events.open("a").close()  # a path that cannot be written is a usage error
    except (UsageError, NoAllocation, NotEnoughFiles, OSError) as error:
        sys.stderr.write(f"understudy run: {error}\n")
        return EXIT_USAGE
    try:
        server = open_server(options.ports or (0,))
    except OSError as error:
        sys.stderr.write(f"understudy run: {error}\n")
        return EXIT_CANNOT_START
    if options.run:
        os.environ["UNDERSTUDY_RUN"] = options.run  # for all steps

    def launcher(inherited: Inheritance) -> int:
        with closing(Events(options.events)) as events:
            return run(options, allocation, key, events, files, inherited)

    return guard(launcher, server, handled(options.checkpoint_signal))


def run(
    options: Options,
    allocation: Allocation,
    key: JobKey,
    events: Events,
    files: OpenFiles,
    inherited: Inheritance,
) -> int:
    if inherited.memory is None:
        _warn(options, allocation, events, files)
    if files.no_standbys:
        options = replace(options, rearm_seconds=math.inf)
    line = AgentLine(
        socket_path(os.environ, None), int(allocation.job_id), int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    )
    hub = Hub(key, inherited.server)
    progress: Progress = HookProgress(line.step, TimeAlive(options.progress_seconds), lambda: line.silent)
    if options.progress_file:
        progress = FileProgress(options.progress_file)
    node_states = NodeStates(allocation.nodes, options.slurm_poll_seconds, events)
    files_of_verdicts = [FileVerdicts(options.verdicts, VERDICT_SECONDS)] if options.verdicts else []
    nodes = Nodes(allocation.nodes, [node_states, line, *files_of_verdicts], events)
    launcher = Launcher(
        options, nodes, hub, Steps(hub, allocation, options, key, files.before_srun), events, progress, line, inherited
    )
    try:
        return launcher.run()
    except OSError as error:
        sys.stderr.write(f"understudy run: {error}\n")
        return EXIT_CANNOT_START
    finally:
        node_states.close()
        if not line.close():
            events.report("end_not_reported", "the agent is away: the control plane does not know how this gang ended")
        hub.close()


def check_size(options: Options, allocation: Allocation) -> None:
    """Raises UsageError."""
    if options.nodes > len(allocation.nodes):
        raise UsageError(
            f"--nodes {options.nodes}, but job {allocation.job_id} has {len(allocation.nodes)}: ask sbatch for "
            f"{counted(options.nodes, 'node')} and some spares (--nodes={options.nodes + 1} --no-kill)"
        )


def _warn(options: Options, allocation: Allocation, events: Events, files: OpenFiles) -> None:
    if files.no_standbys:
        events.report(
            "no_standbys",
            f"no standbys: {files.no_standbys}. Until then launches after the first use the seats of the first, and "
            "their interpreters are cold",
        )
    if options.nodes == len(allocation.nodes):
        message = f"no spare: the allocation has {counted(options.nodes, 'node')}, and the gang needs all of them"
        events.report(
            "no_spares", f"{message}. Ranks that fail are started again; a node that fails cannot be replaced here"
        )
    if asked_for_no_kill(allocation, os.environ) is None:
        events.report(
            "no_kill_unknown",
            "cannot see that this job was asked for with --no-kill: without it Slurm ends the whole job when it "
            "notices a dead node. Put `#SBATCH --no-kill` into the batch script",
        )


if __name__ == "__main__":
    sys.exit(main())
