"""The launcher: one gang, launch after launch, until it is done or cannot go on.

Belongs here: the loop and its phases; joining seats, verdicts and Slurm's word into pictures for `watch`, and carrying
out what `decide` says. Must not: judging by itself, or waiting for anything without a bound.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agents.launch import watch
from agents.launch.decide import Action, Decision, Ended, Failure, Ledger, decide
from agents.launch.events import Events
from agents.launch.hub import Hub, SeatLink, silence_of
from agents.launch.options import Options
from agents.launch.progress import Progress
from agents.launch.protocol import Message, ProtocolError, number
from agents.launch.slurm import Allocation, NodeStates
from agents.launch.steps import Step, Steps
from agents.launch.verdicts import Verdicts
from agents.launch.watch import Over, Picture

EXIT_NODES_MISSING = 69
EXIT_CANNOT_START = 70
EXIT_REQUEUE = 75
TURN_SECONDS = 0.05
PROGRESS_SECONDS = 0.5
PROBE_SECONDS = 15.0
BARRED_SECONDS = 600.0
START_ATTEMPTS_MAX = 3
RESTART_ATTEMPTS_MAX = 30
START_AGAIN_SECONDS = 2.0
STEP_END_SECONDS = 2.0
"""For srun to end when most seats have hung up: then the step was ended, and not these nodes."""
SCANCEL_AFTER_SECONDS = 0.3
"""Seats end their ranks in milliseconds. Where one does not, Slurm is asked to."""


class Phase(StrEnum):
    SEATING = "seating"
    RUNNING = "running"
    ENDING = "ending"
    WAITING = "waiting"
    LEAVING = "leaving"
    DONE = "done"


@dataclass(slots=True)
class Launch:
    """One start of the gang within this allocation."""

    number: int
    seats: tuple[str, ...]
    step: Step
    ordered_at: float
    fault_at: float | None = None
    """When the fault was noticed that this launch answers."""
    went_at: float | None = None
    processes: int = 0
    started: set[str] = field(default_factory=set)
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    first_failure_at: float = 0.0
    progressed: bool = False
    over: Over | None = None
    over_at: float = 0.0
    running_when_over: int = 0
    age_when_over: float = 0.0
    gone: set[str] = field(default_factory=set)

    @property
    def ranks(self) -> int:
        return len(self.seats) * self.processes


class Launcher:
    def __init__(  # noqa: PLR0913, PLR0917 - the parts it joins
        self,
        options: Options,
        allocation: Allocation,
        hub: Hub,
        steps: Steps,
        events: Events,
        verdicts: Verdicts,
        progress: Progress,
        node_states: NodeStates,
    ) -> None:
        self._options = options
        self._allocation = allocation
        self._hub = hub
        self._steps = steps
        self._events = events
        self._verdicts = verdicts
        self._progress = progress
        self._node_states = node_states
        self._lost: dict[str, str] = {}
        """Nodes not used again in this allocation, and why. Verdicts and Slurm's word are asked each time."""
        self._barred: dict[str, float] = {}
        """Nodes where Slurm could not start a seat, and until when none is tried. Ranks that run there may go on."""
        self._seating_seconds = 0.0
        """What the first step needed until every node had answered."""
        self._failed_steps = 0
        self._told_bad: dict[str, str] = {}
        self._ledger = Ledger()
        self._best_step: int | None = None
        self._standby: Step | None = None
        self._phase = Phase.SEATING
        self._launch: Launch
        self._exit_code = 0
        self._until = 0.0
        self._looked_at_progress = 0.0
        self._probed_at = 0.0
        self._rearm_at = 0.0
        self._signals: list[signal.Signals] = []
        self._warned = False
        self._ending_for: signal.Signals | None = None

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The exit code. Raises OSError where srun cannot be started."""
        self._hear_signals()
        seats = tuple(node for node in self._allocation.nodes if node not in self._condemned())
        self._order(seats[: self._options.nodes], 0, None)
        turns = {
            Phase.SEATING: self._seat,
            Phase.RUNNING: self._watch,
            Phase.ENDING: self._end,
            Phase.WAITING: self._wait_for_a_node,
            Phase.LEAVING: self._leave,
        }
        while self._phase is not Phase.DONE:
            for link, message in self._hub.wait(TURN_SECONDS if self._phase is not Phase.ENDING else 0.005):
                self._hear(link, message)
            self._heed_signals()
            self._notice_bad_nodes()
            turns[self._phase]()
            self._steps.tidy()
        return self._exit_code

    def _hear_signals(self) -> None:
        ours, kernels = socket.socketpair()
        ours.setblocking(False)
        kernels.setblocking(False)
        self._sockets = (ours, kernels)
        signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)
        self._hub.watch(ours)
        for name in (signal.SIGTERM, signal.SIGINT, self._options.checkpoint_signal):
            signal.signal(name, lambda received, _: self._signals.append(signal.Signals(received)))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _heed_signals(self) -> None:
        while self._signals:
            received = self._signals.pop(0)
            if received == self._options.checkpoint_signal:
                self._ask_for_checkpoint(received)
            else:
                self._end_for(received)

    def _ask_for_checkpoint(self, received: signal.Signals) -> None:
        self._warned = True
        words = "the ranks are asked for a checkpoint; nothing is started any more"
        self._events.tell("checkpoint_asked", f"{received.name}: {words}", signal=received.name)
        if self._phase is Phase.RUNNING:
            self._signal_ranks(received)

    def _end_for(self, received: signal.Signals) -> None:
        again = self._ending_for is not None
        self._ending_for = received
        self._exit_code = 128 + received
        if self._phase is Phase.RUNNING and not again:
            seconds = self._options.term_seconds
            words = f"{received.name}: the ranks get SIGTERM, and SIGKILL after {seconds:g} s"
            self._events.tell("signal", words, signal=received.name)
            self._until = time.monotonic() + seconds
            self._signal_ranks(signal.SIGTERM)
        else:
            self._events.tell("signal", f"{received.name}: everything is ended now", signal=received.name)
            self._start_leaving()

    def _signal_ranks(self, which: signal.Signals) -> None:
        for node in self._launch.seats:
            link = self._launch.step.link(node)
            if link is not None:
                self._hub.say(link, "signal", number=int(which))

    # -- what is heard -----------------------------------------------------------------------------------------

    def _hear(self, link: SeatLink, message: Message) -> None:
        step = self._steps.of(link)
        if step is None or link.node not in step.nodes:
            return
        try:
            self._understand(step, link, message)
        except ProtocolError as error:
            self._events.tell("protocol", f"the seat on {link.node}: {error}", node=link.node)

    def _understand(self, step: Step, link: SeatLink, message: Message) -> None:
        node, launch = link.node, self._launch
        match message["what"]:
            case "hello":
                self._welcome(step, link)
            case "lost":
                step.lost.add(node)
            case "warm":
                step.warm.add(node)
                self._events.note("warm", node=node, generation=step.generation, failed=message.get("failed"))
                if message.get("failed"):
                    self._events.tell("preload_failed", f"{node}: --preload: {message['failed']}", node=node)
            case "started" if step is launch.step:
                launch.started.add(node)
                if len(launch.started) == len(launch.seats):
                    self._tell_started()
            case "exited" if step is launch.step:
                self._note_exit(node, number(message, "local_rank"), number(message, "status"))
            case "gone" if step is launch.step:
                launch.gone.add(node)

    def _welcome(self, step: Step, link: SeatLink) -> None:
        step.links[link.node] = link
        step.step_id = link.step
        self._events.note("seat", node=link.node, generation=step.generation)
        if step.probe:
            self._lost.pop(link.node, None)
            self._told_bad.pop(link.node, None)
            self._steps.retire(step)
            return
        if self._options.preload and not step.retired_at:
            processes = self._options.procs_per_node or link.gpus or 1
            self._hub.say(link, "prepare", processes=processes, torchrun=self._options.torchrun)
        if step is self._standby and link.node not in self._launch.seats:
            self._steps.leave(self._launch.step, link.node)  # the older standby there

    def _note_exit(self, node: str, local_rank: int, status: int) -> None:
        launch = self._launch
        if node not in launch.seats or (node, local_rank) in launch.ended or launch.over:
            return
        launch.ended[node, local_rank] = status
        if status != 0:
            node_rank = launch.seats.index(node)
            here = 1 if self._options.torchrun else launch.processes
            failure = Failure(node, node_rank, node_rank * here + local_rank, status)
            if not launch.failures:
                launch.first_failure_at = time.monotonic()
            launch.failures.append(failure)

    # -- which nodes are bad -----------------------------------------------------------------------------------

    def _condemned(self) -> dict[str, str]:
        return {**self._node_states.poll(), **self._verdicts.poll(), **self._lost}

    def _unusable(self) -> dict[str, str]:
        """For a new step: condemned nodes, and those where Slurm cannot start anything now."""
        now = time.monotonic()
        self._barred = {node: until for node, until in self._barred.items() if until > now}
        return {**dict.fromkeys(self._barred, "Slurm cannot start anything there"), **self._condemned()}

    def _bar(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._barred[node] = time.monotonic() + BARRED_SECONDS
            words = f"{node}: Slurm could not start a seat there; not tried again for {BARRED_SECONDS / 60:.0f} minutes"
            self._events.tell("barred", words, node=node)

    def _notice_bad_nodes(self) -> None:
        """Spares that are no good any more; what happens to the gang's nodes is the launch's affair."""
        now = time.monotonic()
        launch = self._launch
        for step in (self._standby, launch.step):
            if step is None or step.retired_at or (step is launch.step and self._standby):
                continue
            if step.absent:  # srun may end all of it, for another node's sake
                continue
            for node in step.nodes:
                link = step.links.get(node)
                if node in launch.seats or node in self._lost or node in step.left or link is None:
                    continue
                if node in step.lost:
                    self._lost[node] = "its seat hung up"
                elif silence_of(link, now) > self._options.silence_seconds:
                    self._lost[node] = f"nothing heard of it for {silence_of(link, now):.1f} s"
        condemned = self._condemned()
        for node, why in condemned.items():
            if node not in self._told_bad and node in self._allocation.nodes and node not in launch.seats:
                self._events.tell("spare_bad", f"spare {node} is not used any more: {why}", node=node, why=why)
        for node in self._told_bad.keys() - condemned.keys():
            self._events.tell("node_good", f"{node} can be used again", node=node)
        self._told_bad = condemned

    def _spares(self) -> list[str]:
        unusable = self._unusable()
        taken = set(self._launch.seats)
        free = [node for node in self._allocation.nodes if node not in unusable and node not in taken]
        # One that has a warm seat already comes first.
        standby = self._standby
        return sorted(free, key=lambda node: not (standby and standby.link(node)))

    # -- seating -----------------------------------------------------------------------------------------------

    def _order(self, seats: tuple[str, ...], launch_number: int, fault_at: float | None) -> None:
        """The next launch, on these nodes, in the standbys that are there, or in a new step."""
        step, self._standby = self._standby, None
        if step is not None and not step.can_seat(seats):
            self._steps.retire(step)
            step = None
        if step is None:
            step = self._start_step()
        now = time.monotonic()
        self._launch = Launch(launch_number, seats, step, now, fault_at)
        self._phase = Phase.SEATING
        self._events.note("ordered", launch=launch_number, seats=seats, generation=step.generation)

    def _seat(self) -> None:
        launch, step = self._launch, self._launch.step
        condemned = self._condemned()
        bad = {node: condemned[node] for node in launch.seats if node in condemned}
        bad |= {node: "its seat hung up before the start" for node in launch.seats if node in step.lost}
        missing = [node for node in launch.seats if step.link(node) is None and node not in bad]
        age = time.monotonic() - launch.ordered_at
        ended = step.program.poll()
        if ended is not None and not step.links:
            self._try_again_or_give_up(ended, age)
        elif step.absent and (age > self._patience_seconds() or ended is not None):
            self._bar(step.absent)
            bad |= dict.fromkeys(missing, f"no seat there after {age:.1f} s")
            if not bad:
                self._steps.retire(step)
                self._order(launch.seats, launch.number, launch.fault_at)
        elif not bad and not step.absent:
            bad = self._differing_gpus()
            if not bad:
                self._seating_seconds = self._seating_seconds or age
                self._go()
                return
        if bad:
            self._close(Over(bad))

    def _patience_seconds(self) -> float:
        """For seats to answer. At first Slurm may run a Prolog on each node; later it is known how long it takes."""
        if not self._seating_seconds:
            return self._options.seat_seconds
        return min(self._options.seat_seconds, max(3.0, 3 * self._seating_seconds))

    def _try_again_or_give_up(self, status: int, age: float) -> None:
        """Nobody answered and srun has ended: its options are refused, or slurmctld cannot be reached just now."""
        if age < START_AGAIN_SECONDS:
            return
        self._failed_steps += 1
        if self._failed_steps >= (START_ATTEMPTS_MAX if self._launch.number == 0 else RESTART_ATTEMPTS_MAX):
            words = f"srun ended with {status} before any node answered; its own words stand above"
            self._events.tell("cannot_start", words, status=status)
            self._exit_code = EXIT_CANNOT_START
            self._start_leaving()
        else:
            self._steps.retire(self._launch.step)
            self._order(self._launch.seats, self._launch.number, self._launch.fault_at)

    def _differing_gpus(self) -> dict[str, str]:
        """One rank for each GPU needs as many on every node: who has fewer than most has lost some."""
        if self._options.procs_per_node is not None:
            return {}
        counts = {node: self._launch.step.links[node].gpus for node in self._launch.seats}
        usual = Counter(counts.values()).most_common(1)[0][0]
        return {
            node: f"it shows {count} GPUs, most others {usual}; see --procs-per-node"
            for node, count in counts.items()
            if count != usual
        }

    def _go(self) -> None:
        launch, step = self._launch, self._launch.step
        master = step.links[launch.seats[0]]
        launch.processes = self._options.procs_per_node or master.gpus or 1
        launch.went_at = time.monotonic()
        self._failed_steps = 0
        warm = sum(node in step.warm for node in launch.seats)
        for node_rank, node in enumerate(launch.seats):
            self._hub.say(
                step.links[node],
                "go",
                launch=launch.number,
                nodes=len(launch.seats),
                node_rank=node_rank,
                processes=launch.processes,
                address=master.address,
                port=master.port,
                torchrun=self._options.torchrun,
                node_list=",".join(launch.seats),
            )
        if self._options.torchrun:
            self._launch.processes = 1  # what we see of each node is one torchrun
        spares = self._spares()
        words = f"launch {launch.number} on {len(launch.seats)} nodes ({', '.join(launch.seats)})"
        standing_by = f"{len(spares)} spares" + (f" ({', '.join(spares)})" if spares else "")
        self._events.tell(
            "launch",
            f"{words}; {standing_by}",
            launch=launch.number,
            seats=launch.seats,
            spares=spares,
            warm=warm,
            master=f"{master.address}:{master.port}",
            since_fault_seconds=_since(launch.fault_at, launch.went_at),
        )
        self._phase = Phase.RUNNING

    def _tell_started(self) -> None:
        launch = self._launch
        seconds = _since(launch.fault_at, time.monotonic())
        if seconds is None:
            self._events.note("started", launch=launch.number)
        else:
            words = f"launch {launch.number}: all processes started, {seconds:.3f} s after the fault was known"
            self._events.tell("started", words, launch=launch.number, since_fault_seconds=seconds)

    # -- watching ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = time.monotonic()
        launch = self._launch
        assert launch.went_at is not None
        age = now - launch.went_at
        self._look_at_progress(now, age)
        over = watch.judge(self._picture(now, age), self._options.silence_seconds)
        if self._ending_for is not None:
            if over is not None or now >= self._until:
                self._start_leaving()
        elif over is not None:
            self._close(over)
        elif age >= self._options.rearm_seconds and not self._warned:
            self._rearm(now)

    def _picture(self, now: float, age: float) -> Picture:
        launch, step = self._launch, self._launch.step
        hung_up = dict.fromkeys(step.lost, "its seat hung up: the node, or Slurm's daemon there, is gone")
        links = {node: step.links[node] for node in launch.seats}
        return Picture(
            seats=launch.seats,
            ranks=launch.ranks,
            ended_well=sum(status == 0 for status in launch.ended.values()),
            failures=tuple(launch.failures),
            age_seconds=age,
            first_failure_age_seconds=now - launch.first_failure_at if launch.failures else 0.0,
            silent_seconds={node: silence_of(link, now) for node, link in links.items() if link.open},
            condemned={**self._condemned(), **hung_up},
            progressed=launch.progressed,
        )

    def _look_at_progress(self, now: float, age: float) -> None:
        if now - self._looked_at_progress < PROGRESS_SECONDS:
            return
        self._looked_at_progress = now
        step = self._progress.step(age)
        if step is None or (self._best_step is not None and step <= self._best_step):
            return
        self._best_step = step
        self._launch.progressed = True

    def _rearm(self, now: float) -> None:
        """Standbys for the next launch, on every node: the survivors' interpreters shall be warm, too."""
        standby = self._standby
        if standby is None:
            if now >= self._rearm_at:
                self._standby = self._start_step()
        elif standby.program.poll() is not None or (
            standby.absent and now - standby.asked_at > self._options.seat_seconds
        ):
            if standby.links:  # else it is not for single nodes' sake
                self._bar(standby.absent)
            self._steps.retire(standby)
            self._standby, self._rearm_at = None, now + START_AGAIN_SECONDS

    def _start_step(self) -> Step:
        unusable = self._unusable()
        return self._steps.start([node for node in self._allocation.nodes if node not in unusable])

    # -- ending a launch ---------------------------------------------------------------------------------------

    def _close(self, over: Over) -> None:
        """The launch is over: its ranks are killed, everywhere."""
        now = time.monotonic()
        launch = self._launch
        self._look_at_progress(now + PROGRESS_SECONDS, now - (launch.went_at or now))
        launch.over, launch.over_at = over, now
        launch.running_when_over = launch.ranks - len(launch.ended)
        launch.age_when_over = now - launch.went_at if launch.went_at is not None else 0.0
        for node in launch.seats if launch.went_at is not None else ():
            link = launch.step.link(node)
            if link is not None:
                self._hub.say(link, "kill")
        words = [f"{node}: {why}" for node, why in over.bad.items()] or [str(one) for one in launch.failures[:1]]
        if words:
            self._events.tell("fault", f"launch {launch.number}: {'; '.join(words)}", **self._fault_fields(over))
        self._phase = Phase.ENDING

    def _fault_fields(self, over: Over) -> dict[str, object]:
        launch = self._launch
        first = launch.failures[0] if launch.failures else None
        return {
            "launch": launch.number,
            "bad": dict(over.bad),
            "rank": first.rank if first else None,
            "node": first.node if first else None,
            "status": first.status if first else None,
            "age_seconds": round(launch.age_when_over, 3),
        }

    def _end(self) -> None:
        """Until the nodes that are to go on have no rank of it left; who does not get there in time does not go on."""
        launch = self._launch
        assert launch.over is not None
        unusable = self._unusable()
        waited = time.monotonic() - launch.over_at
        bad = dict(launch.over.bad)
        bad |= {node: unusable[node] for node in launch.seats if node in unusable and node not in bad}
        if self._many_hung_up() and launch.step.killed_at is None:
            ended = launch.step.program.poll() is not None
            if not ended and waited < STEP_END_SECONDS:
                return
            if ended:  # all of the step, by somebody's hand: that is no node's fault
                bad = {node: why for node, why in bad.items() if node in unusable}
                self._judge(bad)
                return
        waiting = [] if launch.went_at is None else [node for node in launch.seats if self._may_hold_ranks(node, bad)]
        if waiting and waited > SCANCEL_AFTER_SECONDS:
            self._steps.kill(launch.step)
        if waiting and waited <= self._options.kill_seconds:
            return
        bad |= dict.fromkeys(waiting, f"its ranks outlived SIGKILL for {waited:.0f} s")
        if launch.step.killed_at is None:
            bad |= {node: "its seat hung up" for node in launch.seats if node in launch.step.lost and node not in bad}
        self._judge(bad)

    def _many_hung_up(self) -> bool:
        launch = self._launch
        lost = sum(node in launch.step.lost for node in launch.seats)
        return launch.went_at is not None and lost > max(1, len(launch.seats) // 2)

    def _may_hold_ranks(self, node: str, bad: Mapping[str, str]) -> bool:
        launch = self._launch
        return node not in bad and node not in launch.gone and launch.step.link(node) is not None

    def _judge(self, bad: Mapping[str, str]) -> None:
        launch = self._launch
        ended = Ended(
            launch=launch.number,
            seats=launch.seats,
            age_seconds=launch.age_when_over,
            progressed=launch.progressed,
            failures=tuple(launch.failures),
            running=launch.running_when_over if launch.went_at is not None else 1,
            bad=bad,
            asked_to_end="the ranks were asked for a last checkpoint" if self._warned else "",
        )
        decision = decide(ended, self._ledger, self._spares(), self._options.rules)
        self._ledger = decision.ledger
        self._events.tell(
            "decision",
            f"launch {launch.number}: {decision.reason}",
            launch=launch.number,
            row=decision.row,
            action=decision.action,
            seats=decision.seats,
            blamed=dict(decision.blamed),
            cleared=decision.cleared,
            exit_code=decision.exit_code,
            ending_seconds=round(time.monotonic() - launch.over_at, 4),
        )
        self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        launch = self._launch
        changing = {**self._verdicts.poll(), **self._node_states.poll(), **self._barred}
        self._lost |= {node: why for node, why in decision.blamed.items() if node not in changing}
        self._told_bad |= {node: why for node, why in decision.blamed.items() if node not in self._barred}
        self._steps.retire(launch.step)
        match decision.action:
            case Action.RELAUNCH | Action.SHRINK:
                if launch.went_at is None:  # nobody has seen this number
                    self._order(decision.seats, launch.number, launch.fault_at or launch.over_at)
                else:
                    self._order(decision.seats, launch.number + 1, launch.over_at)
            case Action.FINISH:
                self._exit_code = decision.exit_code
                self._start_leaving()
            case Action.WAIT:
                self._await(self._options.wait_for_node_seconds)
            case Action.POOL:
                self._exit_code = EXIT_REQUEUE
                self._await(self._options.wait_for_requeue_seconds)
            case Action.FAIL:
                self._exit_code = EXIT_NODES_MISSING
                self._start_leaving()

    # -- out of spares -----------------------------------------------------------------------------------------

    def _await(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._phase = Phase.WAITING
        if self._exit_code == EXIT_REQUEUE:
            words = f"waiting {seconds:g} s for the job to be requeued, then ending with exit code {EXIT_REQUEUE}"
        else:
            words = f"waiting up to {seconds:g} s for a node to come back"
        self._events.tell("waiting", words, seconds=seconds)

    def _wait_for_a_node(self) -> None:
        now = time.monotonic()
        if now >= self._until:
            self._exit_code = EXIT_REQUEUE
            self._start_leaving()
            return
        if self._exit_code == EXIT_REQUEUE:
            return
        unusable = self._unusable()
        bad = [node for node in self._launch.seats if node in unusable]
        spares = self._spares()
        if len(spares) >= len(bad):
            takes = dict(zip(bad, spares, strict=False))
            seats = tuple(takes.get(node, node) for node in self._launch.seats)
            self._order(seats, self._launch.number + 1, None)
        elif now - self._probed_at > PROBE_SECONDS:
            self._probed_at = now
            unknown = [node for node in self._lost if node not in self._verdicts.poll()]
            for node in unknown:  # a step for each: one that is dead shall not hold up the others
                self._steps.retire_after(self._steps.start([node], probe=True), PROBE_SECONDS - 1)

    # -- the end -----------------------------------------------------------------------------------------------

    def _start_leaving(self) -> None:
        for node in self._launch.seats:
            link = self._launch.step.link(node)
            if link is not None:
                self._hub.say(link, "kill")
        self._steps.retire_all()
        self._phase = Phase.LEAVING

    def _leave(self) -> None:
        if self._steps.tidy():
            self._phase = Phase.DONE
            self._events.note("ended", exit_code=self._exit_code)


def _since(fault_at: float | None, now: float) -> float | None:
    return None if fault_at is None else round(now - fault_at, 4)
