"""One start of the gang, and its result: what is known of it, and the samples that `launch_start`, `launch_over`,
`launch_leftovers` and `decide` judge. Times are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy_launcher import launch_start
from understudy_launcher.evidence_findings import Shown, printable
from understudy_launcher.hub import silence_of
from understudy_launcher.launch_leftovers import SILENT_SECONDS, EndingSample
from understudy_launcher.launch_over import (
    HOOK_STEP_SEEN_SECONDS,
    STEP_SEEN_SECONDS,
    LaunchEnd,
    RunningSample,
    Stepped,
    are_many,
)
from understudy_launcher.launch_result import Ended, Failure
from understudy_launcher.options import Options
from understudy_launcher.saved_state import LaunchMemory
from understudy_launcher.slurm_steps import Step
from understudy_wire.errors import ProtocolError

LAST_WORDS_MAX = 16
"""Ranks whose last lines are kept: the first ones."""
DISCONNECTED = "its seat disconnected: the node, or Slurm's daemon there, is gone"


@dataclass(slots=True)
class Launch:
    number: int
    seats: tuple[str, ...]
    step: Step
    ordered_at: float
    fault_at: float | None = None
    """Time at which the fault was noticed because of which this launch was started."""
    began_at: float | None = None
    processes: int = 0
    """Processes that each seat starts. With torchrun: one."""
    started: set[str] = field(default_factory=set)
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    first_failure_at: float = 0.0
    progressed: bool = False
    looked: bool = False
    newest_step: int | None = None
    """A step that is seen at the first look, when the launch begins, is of an earlier launch."""
    moved_at: float | None = None
    """Time at which the newest step last changed."""
    unread_at: float = 0.0
    """Time at which the file with its steps last could not be read: its file system hung. The ranks may have, too."""
    over: LaunchEnd | None = None
    over_at: float = 0.0
    running_when_over: int = 0
    gone: set[str] = field(default_factory=set)
    """Nodes on which no process of it is left."""
    keep_seconds: float = 0.0
    """Time in which ranks that continue in the next launch can leave this one."""
    slow_at: float | None = None
    """Time at which most of its nodes were last found to have ranks that outlive SIGKILL."""
    stuck: frozenset[str] = frozenset()
    """Nodes that still report ranks of it."""
    silent: frozenset[str] = frozenset()
    """Nodes whose silence was reported, and goes on."""
    apart: set[str] = field(default_factory=set)
    """Nodes whose seats connected again and have no ranks of it, although it had begun."""
    last_words: dict[int, str] = field(default_factory=dict)
    """Rank that has failed → the last lines of its standard error."""
    shown: dict[str, list[Shown]] = field(default_factory=dict)
    """Node → what its ranks showed before they were ended."""
    end_reported: bool = False
    """Its end was reported to the control plane."""
    torchrun: bool = False
    """Its processes are one torchrun a node."""
    late_reported: bool = False
    """It has finished no step long after an earlier launch had: this was reported."""
    _places: Mapping[str, int] = field(default_factory=dict)
    _places_of: tuple[str, ...] = ()
    _outside: tuple[str, ...] = ()
    _outside_of: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.seats) * self.processes

    @property
    def places(self) -> Mapping[str, int]:
        """Node → its node rank."""
        if self._places_of is not self.seats:
            self._places_of, self._places = self.seats, {node: rank for rank, node in enumerate(self.seats)}
        return self._places

    def outside(self, names: Sequence[str]) -> tuple[str, ...]:
        """The allocation's nodes that have no seat in it. Nearly every pass of the loop asks."""
        if self._outside_of is not self.seats:
            self._outside_of = self.seats
            self._outside = tuple(node for node in names if node not in self.places)
        return self._outside

    def ranks_per_node(self, options: Options) -> int:
        """The user's number, or that of the GPUs of the first node. 0: that node has not answered yet."""
        link = self.step.link(self.seats[0])
        return options.procs_per_node or (0 if link is None else options.ranks_on(link.gpus))

    def remember(self) -> LaunchMemory:
        return LaunchMemory(
            number=self.number,
            seats=self.seats,
            generation=self.step.generation,
            ordered_at=self.ordered_at,
            fault_at=self.fault_at,
            began_at=self.began_at,
            processes=self.processes,
            torchrun=self.torchrun,
            progressed=self.progressed,
            over=self.over,
            failures=tuple(self.failures) if self.over else (),
            running_when_over=self.running_when_over,
        )

    def age(self, now: float) -> float:
        return 0.0 if self.began_at is None else now - self.began_at

    def since_fault(self, now: float) -> float | None:
        return None if self.fault_at is None else round(now - self.fault_at, 4)

    def note_step(self, step: int | None, now: float) -> None:
        """A changed number shows progress, also a lower one: after a restore steps are repeated."""
        if step != self.newest_step:
            self.moved_at = now if self.looked and step is not None else self.moved_at
            self.newest_step = step
        self.looked = True

    def note_exit(self, node: str, local_rank: int, status: int, now: float) -> None:
        """A rank that ends after the launch is over was killed by its seat."""
        node_rank = self.places.get(node)
        if node_rank is None or (node, local_rank) in self.ended or self.over:
            return
        self.ended[node, local_rank] = status
        if status != 0:
            if not self.failures:
                self.first_failure_at = now
            rank = node_rank * self.processes + local_rank
            self.failures.append(Failure(node, node_rank, rank, status, self.torchrun))

    def note_last_words(self, node: str, local_rank: int, text: str) -> None:
        node_rank = self.places.get(node)
        rank = -1 if node_rank is None else node_rank * self.processes + local_rank
        if any(one.rank == rank for one in self.failures) and len(self.last_words) < LAST_WORDS_MAX:
            self.last_words[rank] = printable(text)

    def rejoin(self, node: str, again: Mapping[str, Any], now: float) -> None:
        """A seat has connected again after its launcher was killed. Raises ProtocolError."""
        if node not in self.places:
            return
        if again.get("launch") != self.number or not again.get("running"):
            self.apart.add(node)
            return
        self.started.add(node)
        ended = again.get("ended")
        for one in ended if isinstance(ended, list) else ():
            if not (isinstance(one, list) and len(one) == 2 and all(isinstance(value, int) for value in one)):
                raise ProtocolError(f"hello: ended is {ended!r}")
            self.note_exit(node, one[0], one[1], now)

    def close(self, over: LaunchEnd, now: float) -> None:
        self.over, self.over_at = over, now
        self.running_when_over = self.ranks - len(self.ended)

    def seating_sample(self, now: float, condemned: Mapping[str, str]) -> launch_start.SeatingSample:
        bad = {node: condemned[node] for node in self.seats if node in condemned}
        bad |= {node: "its seat disconnected before the start" for node in self.seats if node in self.step.lost}
        links = {node: self.step.link(node) for node in self.seats}
        return launch_start.SeatingSample(
            seats=self.seats,
            age_seconds=now - self.ordered_at,
            bad=bad,
            gpus={node: link.gpus for node, link in links.items() if link is not None},
            absent=tuple(self.step.absent),
            answered=bool(self.step.links),
            srun_status=self.step.program.poll(),
        )

    def running_sample(
        self, now: float, condemned: Mapping[str, str], reported: Stepped | None, silent_seconds: Mapping[str, float]
    ) -> RunningSample:
        """`reported`: the training hook's steps; None: the steps that this launch has noted were read from a file."""
        if reported is None:
            step_at = self.moved_at
            quiet_since = None if step_at is None else max(step_at, self.unread_at)
            delay, unsure = STEP_SEEN_SECONDS, 0.0
        else:
            step_at, quiet_since, delay = reported.at, reported.quiet_since, HOOK_STEP_SEEN_SECONDS
            unsure = delay
        return RunningSample(
            seats=self.seats,
            ranks=self.ranks,
            ended_well=sum(status == 0 for status in self.ended.values()),
            failures=tuple(self.failures),
            age_seconds=self.age(now),
            first_failure_age_seconds=now - self.first_failure_at if self.failures else 0.0,
            silent_seconds={node: age for node, age in silent_seconds.items() if node in self.places},
            condemned={**condemned, **dict.fromkeys(self.step.lost, DISCONNECTED)},
            progressed=self.progressed,
            stalled_seconds=0.0 if quiet_since is None else max(0.0, now - quiet_since - unsure),
            step_age_seconds=None if step_at is None else now - step_at,
            step_seen_seconds=delay,
        )

    def summary(self, bad: Mapping[str, str], stopping: str, places: Mapping[str, str], *, stepped: bool) -> Ended:
        """`stepped`: the training hook reported a step of it."""
        return Ended(
            launch=self.number,
            seats=self.seats,
            age_seconds=self.age(self.over_at),
            progressed=self.progressed,
            stepped=self.moved_at is not None or stepped,
            failures=tuple(self.failures),
            running=self.running_when_over if self.began_at is not None else 1,
            bad=bad,
            restart_reason=self.over.restart_reason if self.over else "",
            without=self.over.without if self.over else (),
            hung_seconds=self.over.hung_seconds if self.over else 0.0,
            stopping=stopping,
            places=places,
        )

    def ending_sample(self, now: float, unusable: Mapping[str, str], verdict_may_follow: bool) -> EndingSample:
        """`verdict_may_follow`: the control plane may still name the node that made a rank fail."""
        lost = sum(node in self.step.lost for node in self.seats)
        step_lost = self.began_at is not None and are_many(lost, len(self.seats)) and self.step.killed_at is None
        return EndingSample(
            seats=self.seats,
            over_seconds=now - self.over_at,
            keep_seconds=self.keep_seconds,
            bad=self.over.bad if self.over else {},
            unusable=unusable,
            holding=self._holding_ranks(now),
            disconnected=self.step.disconnected,
            disconnected_seconds=now - self.step.lost_at,
            step_lost=step_lost,
            step_ended=step_lost and self.step.program.poll() is not None,
            slow_seconds=None if self.slow_at is None else now - self.slow_at,
            verdict_may_follow=verdict_may_follow and bool(self.failures),
        )

    def _holding_ranks(self, now: float) -> dict[str, float]:
        if self.began_at is None:
            return {}
        links = {node: self.step.link(node) for node in self.seats if node not in self.gone}
        return {node: silence_of(link, now) for node, link in links.items() if link is not None}

    def away(self, now: float) -> set[str]:
        """Nodes that cannot be reached, and so may come back; not those that report that ranks are left."""
        links = self.step.links
        silent = {node for node, link in links.items() if link.open and silence_of(link, now) > SILENT_SECONDS}
        return (self.step.disconnected | silent) - self.stuck

    def fault_fields(self, over: LaunchEnd) -> dict[str, object]:
        first = self.failures[0] if self.failures else None
        return {
            "launch": self.number,
            "bad": dict(over.bad),
            "rank": first.rank if first else None,
            "node": first.node if first else None,
            "status": first.status if first else None,
            "hung_seconds": round(over.hung_seconds, 3) or None,
            "age_seconds": round(self.age(self.over_at), 3),
        }


def remembered(memory: LaunchMemory, step: Step) -> Launch:
    """The launch of a launcher that was killed. The exits of its ranks are reported again, unless it was over."""
    launch = Launch(memory.number, memory.seats, step, memory.ordered_at, memory.fault_at, memory.began_at)
    launch.processes, launch.progressed = memory.processes, memory.progressed
    launch.torchrun = memory.torchrun
    launch.over, launch.failures = memory.over, list(memory.failures)
    launch.running_when_over = memory.running_when_over
    return launch
