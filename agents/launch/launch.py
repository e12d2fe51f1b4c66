"""One start of the gang, and what became of it.

Belongs here: what is known of a launch, put into the pictures that `watch` and `decide` judge. Must not: clocks (times
are given), sending anything, deciding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.launch.decide import Ended, Failure
from agents.launch.hub import silence_of
from agents.launch.steps import Step
from agents.launch.watch import Over, Picture, are_many

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
    stuck: set[str] = field(default_factory=set)
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

    def summary(self, bad: Mapping[str, str], asked_to_end: str) -> Ended:
        return Ended(
            launch=self.number,
            seats=self.seats,
            age_seconds=self.age(self.over_at),
            progressed=self.progressed,
            failures=tuple(self.failures),
            running=self.running_when_over if self.went_at is not None else 1,
            bad=bad,
            told=self.over.told if self.over else "",
            without=self.over.without if self.over else (),
            hung_seconds=self.over.hung_seconds if self.over else 0.0,
            asked_to_end=asked_to_end,
        )

    def many_hung_up(self) -> bool:
        lost = sum(node in self.step.lost for node in self.seats)
        return self.went_at is not None and are_many(lost, len(self.seats))

    def may_hold_ranks(self, now: float) -> dict[str, float]:
        """Nodes whose seat is there and has not said yet that nothing of this launch is left; and how long it is
        silent.
        """
        if self.went_at is None:
            return {}
        links = {node: self.step.link(node) for node in self.seats if node not in self.gone}
        return {node: silence_of(link, now) for node, link in links.items() if link is not None}

    def differing_gpus(self) -> dict[str, str]:
        """One rank for each GPU needs as many on every node: who has another number than most has lost some."""
        counts = {node: self.step.links[node].gpus for node in self.seats}
        usual = Counter(counts.values()).most_common(1)[0][0]
        return {
            node: f"it shows {count} GPUs, most others {usual}; see --procs-per-node"
            for node, count in counts.items()
            if count != usual
        }

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
