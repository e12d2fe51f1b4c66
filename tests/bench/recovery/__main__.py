"""Runs every side with every fault, and prints and writes the results.

`python -m tests.bench.recovery [--runs N] [--sides A,B] [--faults A,B] [--give-up-seconds S] [--minutes M] [--again]
[--keep]`
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.recovery import job as program
from tests.bench.recovery import never
from tests.bench.recovery.environment import health_check, make_nvrx
from tests.bench.recovery.faults import DEAD_NODE, FAULTS, KILLED_NODE, all_whole, repair
from tests.bench.recovery.judge import (
    Run,
    Step,
    broken_promises,
    figures,
    first_step_after,
    judge,
    read_joined,
    read_steps,
    values,
    weights_right,
)
from tests.bench.recovery.sides import GANG, IMPORTING, POOL, SIDES, SPARES, TUNED, Job, Side, tuned
from tests.bench.result import BENCH_DIRECTORY, write
from tests.testbed.cluster import ClusterError
from tests.testbed.configuration import free_ports
from tests.testbed.installation import NATIVE
from tests.testbed.network import why_impossible
from tests.testbed.site import RESEARCHER, Site

DIRECTORY = Path("/var/tmp/understudy-recovery")  # noqa: S108 - used only here: root creates it at each run
NVRX_DIRECTORY = DIRECTORY.with_name("understudy-recovery-nvrx")
LASTING = (KILLED_NODE, DEAD_NODE)
"""After these Slurm needs minutes until its step daemons are done with the node: a new cluster is quicker."""
GIVE_UP_SECONDS = 45.0
READY_STEPS = 25
READY_SECONDS = 90.0
LOOK_SECONDS = 0.02
UNSEEN_MAX = 1
"""After this number of runs without a recovery from a fault a side is not tried again: each takes the whole time."""
END_SECONDS = 15.0
UNUSUAL = ("understudy_pool", "understudy_cold", "understudy_warm")
"""Sides that are measured where they are asked for: of each there is another one, and a run has ten minutes."""
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    runs: int | None
    """None: as each side has it."""
    sides: Sequence[Side]
    faults: Sequence[str]
    give_up_seconds: float
    keep: bool
    again: bool
    """Also what is known not to recover."""
    minutes: float
    """After that no other side and fault is begun."""


class Attempt:
    """One job, from sbatch to its end; and the cluster made whole again."""

    def __init__(self, site: Site, side: Side, fault: str, number: int, nvrx: Path) -> None:
        self._site, self._side, self._fault, self._number = site, side, fault, number
        self._home = site.cluster.user_directory(RESEARCHER) / "job"
        self._nvrx = nvrx
        self._job = 0
        self._node = ""
        self._heard = 0

    def run(self, give_up_seconds: float) -> Run:
        """Raises ClusterError where the job does not even train."""
        run = Run(self._side.name, self._fault, give_up_seconds)
        self._submit()
        self._wait(self._ready, READY_SECONDS, "the gang trains, and standbys wait")
        self._node = self._victim()
        self._heard = len(self._output())
        fault_at = FAULTS[self._fault](self._site, self._home, self._node)
        detected_at = self._watch(fault_at, give_up_seconds)
        run = judge(run, self._steps(), read_joined(self._read("joined")), fault_at, detected_at)
        if run.to_first_step_seconds is None:
            return replace(run, remark=self._remark())
        return replace(run, weights_right=self._bring_to_its_end())

    def _submit(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        (self._home / "faults").mkdir(parents=True)
        directory = self._site.code / "bench"
        directory.mkdir(exist_ok=True)
        copy = Path(shutil.copy(program.__file__, directory / "job.py"))
        python = self._site.job_python()
        lib = self._site.directory / "lib"
        nodes = self._site.directory / "nodes"
        job = Job(python, copy, self._home, self._nvrx, self._fault, free_ports(1)[0], lib, nodes)
        script = self._home / "job.sh"
        script.write_text(f"#!/bin/bash\n#SBATCH --output=output --open-mode=append\n{self._side.script(job)}")
        for path in (self._home, self._home / "faults"):
            shutil.chown(path, RESEARCHER)
        options = [f"--nodes={self._side.nodes}", "--ntasks-per-node=1", "--gres=gpu:8", f"--chdir={self._home}"]
        self._job = self._site.submit(script, options=[*options, *self._side.sbatch])

    # -- before the fault --------------------------------------------------------------------------------------

    def _ready(self) -> bool:
        events = [json.loads(line) for line in self._read("events").splitlines() if line.endswith("}")]
        what = "warm" if self._side.warm else "seat"
        standbys = sum(one["event"] == what and one["generation"] == 1 for one in events)
        spares = len(self._site.spares_held()) if self._side.pool else 0
        return len(self._steps()) >= READY_STEPS and standbys >= self._side.standbys and spares >= self._side.pool

    def _victim(self) -> str:
        """Never that of rank 0, where in some sides everything comes together."""
        gang = self._steps()[-1].gang
        ranks = {int(one["rank"]): str(one["node"]) for one in read_joined(self._read("joined")) if one["gang"] == gang}
        # No side can lose the node of the batch script; that is not everywhere rank 0's.
        rank = 1 + self._number % (GANG - 1)
        return ranks[rank] if ranks[rank] != self._batch_host() else ranks[1 + rank % (GANG - 1)]

    def _batch_host(self) -> str:
        return self._field("BatchHost")

    # -- after it ----------------------------------------------------------------------------------------------

    def _watch(self, fault_at: float, give_up_seconds: float) -> float | None:
        """Until the first step after it, or until there is no more hope. When the side was seen to know of it."""
        noticed: float | None = None
        looked_at_job = 0.0
        while (now := time.time()) < fault_at + give_up_seconds:
            if noticed is None and self._side.notices.search(self._output()[self._heard :]):
                noticed = now
            if first_step_after(self._steps(), fault_at):
                break
            if now - looked_at_job > 1:
                looked_at_job = now
                if self._field("JobState") in OVER:
                    break
            time.sleep(LOOK_SECONDS)
        return self._reported_at(fault_at) or noticed

    def _reported_at(self, fault_at: float) -> float | None:
        """Time by the launcher's own events."""
        events = [json.loads(line) for line in self._read("events").splitlines() if line.endswith("}")]
        return next((float(one["at"]) for one in events if one["event"] == "fault" and one["at"] >= fault_at), None)

    def _remark(self) -> str:
        state = self._field("JobState")
        still = state == "RUNNING" and self._steps() and time.time() - self._steps()[-1].at < 1
        return f"job is {state}" + (", and trains on as it was" if still else "")

    def _bring_to_its_end(self) -> bool:
        partial = self._home / ".stop"
        partial.write_text(str(self._steps()[-1].done + 15))
        partial.rename(self._home / "stop")
        final = self._home / "final"
        try:
            self._wait(lambda: len(read_joined(self._read("final"))) >= GANG, 20, "the job comes to its end")
        except ClusterError:
            return False
        return weights_right(read_joined(final.read_text()), GANG)

    def clean_up(self) -> None:
        """The cluster is as it was before."""
        if not self._ends_by_itself():
            self._site.cluster.run("scancel", str(self._job))
        for path in (self._home / "faults").iterdir():
            path.unlink()
        repair(self._site, self._node)
        # A message of a node that Slurm lost is sent again after a minute.
        self._wait(lambda: self._field("JobState") in OVER, 100, f"job {self._job} is over")
        self._wait(lambda: all_whole(self._site), 100, "every node is in service")

    def _ends_by_itself(self) -> bool:
        """A job that is cancelled while it ends can leave Slurm waiting for a node that has long finished."""
        deadline = time.monotonic() + (END_SECONDS if (self._home / "final").exists() else 0)
        while time.monotonic() < deadline:
            if self._field("JobState") in {*OVER, "COMPLETING"}:
                return True
            time.sleep(0.1)
        return False

    # -- what it shows -----------------------------------------------------------------------------------------

    def _read(self, name: str) -> str:
        try:
            return (self._home / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _output(self) -> str:
        return self._read("output")

    def _steps(self) -> list[Step]:
        return read_steps(self._read("steps"))

    def _field(self, name: str) -> str:
        shown = self._site.cluster.run("scontrol", "show", "job", "-o", str(self._job)).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")

    def _wait(self, predicate: Callable[[], object], seconds: float, what: str) -> None:
        try:
            self._site.wait_for(predicate, seconds, f"{self._side.name}, {self._fault}: {what}")
        except ClusterError as error:
            raise ClusterError(f"{error}\n--- the job's output\n{self._output()[-4000:]}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    console = Console(highlight=False)
    if not console.is_terminal:  # a log has no edge to wrap at
        console.width = 120
    begun = time.monotonic()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - begun:6.1f} s[/]  {line}")

    runs_file = BENCH_DIRECTORY / "recovery.runs"
    runs_file.parent.mkdir(parents=True, exist_ok=True)
    if not options.keep:
        runs_file.unlink(missing_ok=True)
    for run in measure(options, say):
        with runs_file.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")
        never.keep([run], time.strftime("%Y-%m-%d"))  # at once: it took minutes to find out
    runs = [Run(**json.loads(line)) for line in runs_file.read_text().splitlines()]
    measured = {(one.side, one.fault) for one in runs}
    runs += [one.as_run() for one in _known(options) if (one.side, one.fault) not in measured]
    show(console, runs)
    path = write("recovery", figures(runs))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"runs": [asdict(one) for one in runs]}, indent=2) + "\n")
    console.print(f"written to {path}")
    broken = broken_promises(runs)
    for line in broken:
        console.print(f"[bold red]broken promise:[/] {line}")
    return 1 if broken else 0


class Clusters:
    """One cluster at a time: with the control plane for Understudy, and as each other tool requires it."""

    def __init__(self, say: Say, with_nvrx: bool) -> None:
        self._say = say
        self._stack = contextlib.ExitStack()
        self._wanted: object = None
        self._site: Site | None = None
        self._nvrx = Path(sys.executable)
        if with_nvrx:
            say("a virtual environment with NVRx")
            self._nvrx = make_nvrx(NVRX_DIRECTORY, Path(sys.executable))

    def for_side(self, side: Side) -> Site:
        if self._site is None or self._wanted != (side.watched, side.pool, side.slurm):
            self.end()
            self._wanted = (side.watched, side.pool, side.slurm)
            self._site = self._start(side)
        return self._site

    @property
    def nvrx(self) -> Path:
        return self._nvrx

    def end(self) -> None:
        self._site = None
        self._stack.close()

    def _start(self, side: Side) -> Site:
        lines = side.slurm
        if lines == TUNED:
            lines = tuned(DIRECTORY / "munge" / "socket", DIRECTORY / "health_check")
        slurm = replace(NATIVE, settings=lines)
        # Nodes are broken one after the other, and made whole again.
        settings: dict[str, dict[str, str | float | bool]] = {
            "guards": {"quarantines_per_hour_max": 10_000, "breaker_nodes_max": 10_000, "breaker_share_max": 1.0},
            "jobs": {"swaps_per_hour_max": 1000},
            "straggler": {"move_when_it_pays": False},  # the reaction is measured, not the wait for a checkpoint
        }
        site = Site(DIRECTORY, nodes=GANG + SPARES, spares=side.pool, slurm=slurm, settings=settings)
        self._stack.enter_context(site)
        health_check(site.directory)
        if side.watched:
            site.start_agents()
            site.start_control_plane()
            site.wait_for(lambda: len(site.spares_held()) == side.pool, 30, f"{side.pool} spares are held")
        return site


def measure(options: Options, say: Say) -> Iterator[Run]:
    impossible = DEAD_NODE if why_impossible() else ""
    if impossible in options.faults:
        say(f"{impossible} is not possible on this machine: {why_impossible()}")
    left_out = set() if options.again else {(one.side, one.fault) for one in _known(options)}
    until = time.monotonic() + 60 * options.minutes
    clusters = Clusters(say, any(side.name == "nvrx" for side in options.sides))
    try:
        for side, fault in itertools.product(options.sides, options.faults):
            known = (side.name, fault) in left_out
            if fault not in side.faults or fault == impossible or known:
                continue
            if time.monotonic() > until:
                say(f"{side.name}, {fault}: left out, as {options.minutes:g} minutes are over (--minutes)")
            else:
                yield from _repeat(clusters, side, fault, options, say)
    finally:
        clusters.end()
        shutil.rmtree(NVRX_DIRECTORY, ignore_errors=True)


def _known(options: Options) -> list[never.Never]:
    """What the sides that were asked for are known not to recover from."""
    names = {side.name for side in options.sides}
    return [one for one in never.read() if one.side in names and one.fault in options.faults]


def _repeat(clusters: Clusters, side: Side, fault: str, options: Options, say: Say) -> Iterator[Run]:
    unseen, runs = 0, options.runs or side.runs
    give_up_seconds = max(options.give_up_seconds, side.notices_within_seconds.get(fault, 0.0))
    for number in range(runs):
        attempt = Attempt(clusters.for_side(side), side, fault, number, clusters.nvrx)
        run = attempt.run(give_up_seconds)
        say(f"{side.name}, {fault}, run {number + 1} of {runs}: {_in_words(run)}")
        yield run
        if fault in LASTING:
            clusters.end()
        else:
            attempt.clean_up()
        unseen += run.to_first_step_seconds is None
        if unseen >= UNSEEN_MAX:
            break


def _in_words(run: Run) -> str:
    if run.to_first_step_seconds is None:
        return f"not back within {run.waited_seconds:.0f} s; {run.remark}"
    line = f"noticed {_seconds(run.to_detection_seconds)}, gang {_seconds(run.to_gang_seconds)}, "
    line += f"connected {_seconds(run.to_communicator_seconds)}, "
    line += f"first step {_seconds(run.to_first_step_seconds)}, {run.steps_lost} steps lost"
    return line + ("" if run.weights_right else ", [red]other weights, or not at its end[/]")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def show(console: Console, runs: Sequence[Run]) -> None:
    """Medians, and the ratio of each to Understudy's."""
    for fault in dict.fromkeys(one.fault for one in runs):
        table = Table(
            "side", "runs", "noticed", "gang", "connected", "first step", "worst", "ratio", "steps lost", "weights"
        )
        for column in table.columns[1:]:
            column.justify = "right"
        table.title, table.title_justify = f"{fault}: medians", "left"
        understudy = values(runs, "understudy", fault, "to_first_step_seconds")
        for side in dict.fromkeys(one.side for one in runs if one.fault == fault):
            of_it = [one for one in runs if (one.side, one.fault) == (side, fault)]
            table.add_row(*_row(side, of_it, median(understudy) if understudy else None))
        console.print(table)


def _row(side: str, runs: Sequence[Run], understudy: float | None) -> list[str]:
    back = [one.to_first_step_seconds for one in runs if one.to_first_step_seconds is not None]
    times = [one.to_detection_seconds for one in runs if one.to_detection_seconds is not None]
    noticed = _seconds(median(times)) if times else "-"
    if not back:
        never = f"not within {runs[0].waited_seconds:.0f} s"
        return [side, str(len(runs)), noticed, "-", "-", f"{never}: {runs[-1].remark}", "-", "-", "-", "-"]
    gangs = [one.to_gang_seconds for one in runs if one.to_gang_seconds is not None]
    connected = [one.to_communicator_seconds for one in runs if one.to_communicator_seconds is not None]
    lost = [one.steps_lost for one in runs if one.steps_lost is not None]
    return [
        side,
        f"{len(back)} of {len(runs)}" if len(back) < len(runs) else str(len(runs)),
        noticed,
        _seconds(median(gangs)),
        _seconds(median(connected)),
        _seconds(median(back)),
        _seconds(max(back)),
        f"{median(back) / understudy:.1f}" if understudy else "-",
        f"{median(lost):.0f}",
        "right" if all(one.weights_right for one in runs if one.to_first_step_seconds is not None) else "wrong",
    ]


def read_options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="tests.bench.recovery", description=__doc__)
    everyone = [*POOL, *SIDES, *IMPORTING]
    names = [side.name for side in everyone]
    parser.add_argument("--runs", type=int, help="of each side with each fault (default: 3 of Understudy, else 1)")
    usual = ",".join(name for name in names if name not in UNUSUAL)
    parser.add_argument("--sides", default=usual, help=f"of {', '.join(names)} (default: {usual})")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--give-up-seconds", type=float, default=GIVE_UP_SECONDS, help="and a fault was not noticed")
    parser.add_argument("--minutes", type=float, default=9, help="then nothing else is begun (default: 9)")
    parser.add_argument("--again", action="store_true", help="also what a side is known not to recover from")
    parser.add_argument("--keep", action="store_true", help="add to the runs of the last time")
    given = parser.parse_args(arguments)
    sides, faults = given.sides.split(","), given.faults.split(",")
    unknown = ({*sides} - {*names}) | ({*faults} - {*FAULTS})
    if unknown:
        parser.error(f"no such side or fault: {', '.join(sorted(unknown))}")
    chosen = [side for side in everyone if side.name in sides]
    return Options(given.runs, chosen, faults, given.give_up_seconds, given.keep, given.again, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
