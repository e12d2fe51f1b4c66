"""One start of the gang, and what became of it.

Belongs here: what is known of a launch, put into the pictures that `seating`, `watch`, `ending` and `decide` judge.
Must not: clocks (times are given), sending anything, deciding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_agent.launch import seating
from understudy_agent.launch.case import Ended, Failure
from understudy_agent.launch.ending import SILENT_SECONDS, Remains
from understudy_agent.launch.hub import silence_of
from understudy_agent.launch.steps import Step
from understudy_agent.launch.watch import Over, Picture, are_many

HUNG_UP = "its seat hung up: the node, or Slurm's daemon there, is gone"


@dataclass(slots=True)
class Launch:
    number: int
    seats: tuple[str, ...]
    step: Step
    ordered_at: float
    fault_at: float | None = None
    """When the fault was noticed that this launch answers."""
    went_at: float | None = None
    processes: int = 0
    """On each node, as far as we see: one where it is torchrun."""
    started: set[str] = field(default_factory=set)
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    first_failure_at: float = 0.0
    progressed: bool = False
    looked: bool = False
    newest_step: int | None = None
    """What is seen at the first look, when it begins, is of a launch before."""
    moved_at: float | None = None
    """When another newest step was seen."""
    over: Over | None = None
    over_at: float = 0.0
    running_when_over: int = 0
    gone: set[str] = field(default_factory=set)
    """Nodes on which no process of it is left."""
    keep_seconds: float = 0.0
    """For ranks that may go on in the next launch to leave this one."""
    slow_at: float | None = None
    """When most of its nodes were last found to have ranks that outlive SIGKILL."""
    stuck: frozenset[str] = frozenset()
    """Nodes on which ranks of it may be left."""
    end_told: bool = False
    """The control plane was told how it ended."""

    @property
    def ranks(self) -> int:
        return len(self.seats) * self.processes

    def age(self, now: float) -> float:
        return 0.0 if self.went_at is None else now - self.went_at

    def since_fault(self, now: float) -> float | None:
        return None if self.fault_at is None else round(now - self.fault_at, 4)

    def note_step(self, step: int | None, now: float) -> None:
        """Another number than before shows that it moves; a lower one, too, for it may do steps again."""
        if step != self.newest_step:
            self.moved_at = now if self.looked and step is not None else self.moved_at
            self.newest_step = step
        self.looked = True

    def note_exit(self, node: str, local_rank: int, status: int, now: float) -> None:
        """What ends after the launch is over was killed by us."""
        if node not in self.seats or (node, local_rank) in self.ended or self.over:
            return
        self.ended[node, local_rank] = status
        if status != 0:
            if not self.failures:
                self.first_failure_at = now
            node_rank = self.seats.index(node)
            self.failures.append(Failure(node, node_rank, node_rank * self.processes + local_rank, status))

    def close(self, over: Over, now: float) -> None:
        self.over, self.over_at = over, now
        self.running_when_over = self.ranks - len(self.ended)

    def seated(self, now: float, condemned: Mapping[str, str]) -> seating.Picture:
        """Before it begins."""
        bad = {node: condemned[node] for node in self.seats if node in condemned}
        bad |= {node: "its seat hung up before the start" for node in self.seats if node in self.step.lost}
        links = {node: self.step.link(node) for node in self.seats}
        return seating.Picture(
            seats=self.seats,
            age_seconds=now - self.ordered_at,
            bad=bad,
            gpus={node: link.gpus for node, link in links.items() if link is not None},
            absent=tuple(self.step.absent),
            answered=bool(self.step.links),
            srun_status=self.step.program.poll(),
        )

    def picture(self, now: float, condemned: Mapping[str, str]) -> Picture:
        links = {node: self.step.links[node] for node in self.seats}
        return Picture(
            seats=self.seats,
            ranks=self.ranks,
            ended_well=sum(status == 0 for status in self.ended.values()),
            failures=tuple(self.failures),
            age_seconds=self.age(now),
            first_failure_age_seconds=now - self.first_failure_at if self.failures else 0.0,
            silent_seconds={node: silence_of(link, now) for node, link in links.items() if link.open},
            condemned={**condemned, **dict.fromkeys(self.step.lost, HUNG_UP)},
            progressed=self.progressed,
            stalled_seconds=0.0 if self.moved_at is None else now - self.moved_at,
        )

    def summary(self, bad: Mapping[str, str], stopping: str) -> Ended:
        return Ended(
            launch=self.number,
            seats=self.seats,
            age_seconds=self.age(self.over_at),
            progressed=self.progressed,
            failures=tuple(self.failures),
            running=self.running_when_over if self.went_at is not None else 1,
            bad=bad,
            restart_reason=self.over.told if self.over else "",
            without=self.over.without if self.over else (),
            hung_seconds=self.over.hung_seconds if self.over else 0.0,
            stopping=stopping,
        )

    def remains(self, now: float, unusable: Mapping[str, str], may_be_a_nodes: bool) -> Remains:
        """After it is over. `may_be_a_nodes`: what made a rank fail may still be told."""
        lost = sum(node in self.step.lost for node in self.seats)
        step_lost = self.went_at is not None and are_many(lost, len(self.seats)) and self.step.killed_at is None
        return Remains(
            seats=self.seats,
            over_seconds=now - self.over_at,
            keep_seconds=self.keep_seconds,
            bad=self.over.bad if self.over else {},
            unusable=unusable,
            holding=self._holding_ranks(now),
            hung_up=self.step.hung_up,
            hung_up_seconds=now - self.step.lost_at,
            step_lost=step_lost,
            step_ended=step_lost and self.step.program.poll() is not None,
            slow_seconds=None if self.slow_at is None else now - self.slow_at,
            may_be_a_nodes=may_be_a_nodes and bool(self.failures),
        )

    def _holding_ranks(self, now: float) -> dict[str, float]:
        if self.went_at is None:
            return {}
        links = {node: self.step.link(node) for node in self.seats if node not in self.gone}
        return {node: silence_of(link, now) for node, link in links.items() if link is not None}

    def away(self, now: float) -> set[str]:
        """Nodes that are not to be reached, and so may come back. One that says that ranks are left may not."""
        links = self.step.links
        silent = {node for node, link in links.items() if link.open and silence_of(link, now) > SILENT_SECONDS}
        return (self.step.hung_up | silent) - self.stuck

    def fault_fields(self, over: Over) -> dict[str, object]:
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
