"""The launcher: one gang, launch after launch, until it is done or cannot go on.

It carries out what is judged elsewhere (`launch_start`, `launch_over`, `launch_leftovers`, `decide`, `signals`), and
waits for nothing without a bound.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import assert_never

from understudy_launcher import launch_leftovers, launch_over, launch_start
from understudy_launcher.agent_client import AgentLine
from understudy_launcher.budget import Budget
from understudy_launcher.checkpoint_files import look_for
from understudy_launcher.command import group_sizes
from understudy_launcher.decide import Action, Decision, decide
from understudy_launcher.event_log import Events
from understudy_launcher.guardian import Inheritance
from understudy_launcher.hub import Hub
from understudy_launcher.launch import Launch, remembered
from understudy_launcher.launch_over import LaunchEnd
from understudy_launcher.launch_result import Rules
from understudy_launcher.nodes import Nodes
from understudy_launcher.options import Options
from understudy_launcher.outcomes import EXIT_REQUEUE
from understudy_launcher.progress import Progress
from understudy_launcher.rank_order import arrange
from understudy_launcher.reports import Reports
from understudy_launcher.saved_state import LauncherMemory
from understudy_launcher.seat_messages import SeatMessages
from understudy_launcher.signals import Meaning, Signals
from understudy_launcher.slurm_steps import Steps, ended_step
from understudy_launcher.standbys import Standbys
from understudy_wire.parallelism import DATA_PARALLEL, parallelism_of

EXIT_NODES_MISSING = 69
EXIT_CANNOT_START = 70
EVIDENCE_SECONDS = 5.0
"""Time for seats to show what the ranks of a gang that hangs are doing. Then it is ended in any case."""
LAYOUT_SECONDS = 2.0
"""Time for the control plane to name domains, before the first launch begins in Slurm's order."""
REJOIN_SECONDS = 5.0
"""Time for seats to connect again to a launcher that was started again. Then their nodes are lost."""
REJOIN_SEATS_A_SECOND = 500
"""Large gangs have a second for this many seats."""
FIRST_STEP_TIMES, FIRST_STEP_SECONDS = 3.0, 60.0
"""A launch may take this many times as long until its first step as an earlier one, and this time on top: it reads a
checkpoint, and its steps are reported a moment later.
"""
BEST_STEP_SECONDS = 10.0
"""The furthest step is remembered for the next launcher no more often."""
TURN_SECONDS = 0.05
TURN_SECONDS_ENDING = 0.005
READING_TIMES = 4
"""Messages that keep coming are read for this many times what the last look at all seats took, and no longer than a
pass of the loop usually waits: with 12,500 seats a look after each few messages would take most of the time.
"""


class Phase(StrEnum):
    REJOINING = "rejoining"
    """The launcher before was killed, and its seats connect again."""
    SEATING = "seating"
    RUNNING = "running"
    ENDING = "ending"
    WAITING = "waiting"
    LEAVING = "leaving"
    DONE = "done"


class Launcher:
    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each there once
        self,
        options: Options,
        nodes: Nodes,
        hub: Hub,
        steps: Steps,
        events: Events,
        progress: Progress,
        line: AgentLine,
        inherited: Inheritance,
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._hub = hub
        self._steps = steps
        self._line = line
        self._inherited = inherited
        self._remembered: object = None
        self._rejoin_until = 0.0
        self._best_step: int | None = None
        self._best_step_at = 0.0
        self._signals = Signals(options.checkpoint_signal)
        self._standbys = Standbys(options, nodes, steps)
        self._budget = Budget(progress, options.rules.launches_without_progress_max, events, lambda: line.count_from)
        self._reports = Reports(options, nodes.names, events, line)
        self._seats = SeatMessages(options, hub, steps, self._standbys, self._reports)
        self._phase = Phase.SEATING
        self._launch: Launch
        self._hang: LaunchEnd | None = None
        """The launch hangs, and its seats are asked what its ranks are doing, until `_asked_until`."""
        self._asked_until = 0.0
        self._exit_code = 0
        self._until = 0.0
        self._seating_seconds: float | None = None
        """Time that the first step took until every node had answered."""
        self._begun_on: tuple[str, ...] = ()
        """Nodes of the last launch that began, by node rank."""
        self._failed_steps = 0
        """Failed steps since the last launch began."""
        self._first_step_seconds: float | None = None
        """Time from the start of the first launch with a step until that step."""
        self._look_seconds = 0.0
        """Time that the last pass of the loop took, without reading messages."""

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Returns the exit code. Raises OSError where srun cannot be started."""
        self._hub.watch(self._signals.listen())
        self._hub.watch(self._inherited.signals, self._signals.take)
        if self._inherited.memory is None:
            self._order(self._first_seats(), 0, None)
        else:
            self._resume(self._inherited.memory)
        turns = {
            Phase.REJOINING: self._rejoin,
            Phase.SEATING: self._seat,
            Phase.RUNNING: self._watch,
            Phase.ENDING: self._end,
            Phase.WAITING: self._wait,
            Phase.LEAVING: self._leave,
        }
        self._remember()
        while self._phase is not Phase.DONE:
            self._receive()
            began = time.monotonic()
            if self._phase is not Phase.REJOINING:
                self._handle_signals()
                self._exchange_with_agent()
                self._standbys.notice_bad(self._launch)
            turns[self._phase]()
            self._steps.tidy()
            self._remember()
            self._look_seconds = time.monotonic() - began
        self._exchange_with_agent()
        return self._exit_code

    def _receive(self) -> None:
        seconds = TURN_SECONDS_ENDING if self._phase is Phase.ENDING else TURN_SECONDS
        more = self._read(seconds)
        until = time.monotonic() + min(READING_TIMES * self._look_seconds, TURN_SECONDS)
        while more and time.monotonic() < until:
            more = self._read(0.0)

    def _read(self, seconds: float) -> bool:
        """Waits for messages for this time. Whether any came."""
        came = False
        for link, message in self._hub.wait(seconds):
            came = True
            received = self._seats.receive(link, message, self._launch)
            if received is not None and self._signals.meaning_of_a_steps(received) is Meaning.WARNING:
                self._ask_for_checkpoint(self._options.checkpoint_signal)
        return came

    def _exchange_with_agent(self) -> None:
        """Reports the state of the gang, receives orders. Without an agent the gang goes on."""
        spares = self._standbys.spares(self._launch)
        self._reports.state(
            self._launch,
            self._phase.value,
            spares,
            self._rules,
            ended_well=self._ended_well,
            asks_requeue=self._asks_requeue,
        )
        self._hub.also_wait_for(self._line.turn())
        self._reports.trouble()
        if self._line.has_orders:
            new = self._line.newcomers
            ran_on = [node for node in self._nodes.names if node not in new] if new else []
            self._budget.take_over(self._line.launches_without_progress, self._line.best_step, ran_on)

    @property
    def _ended_well(self) -> bool:
        """Every rank has. Whatever else it leaves for, it has another exit code."""
        return self._phase in (Phase.LEAVING, Phase.DONE) and self._exit_code == 0

    @property
    def _asks_requeue(self) -> bool:
        return self._phase is Phase.WAITING and self._exit_code == EXIT_REQUEUE

    # -- a launcher that was killed ----------------------------------------------------------------------------

    def _remember(self) -> None:
        """Writes what a launcher in this one's place needs, where it has changed."""
        if self._phase is Phase.REJOINING:
            return
        now = time.monotonic()
        if now - self._best_step_at >= BEST_STEP_SECONDS:
            self._best_step, self._best_step_at = self._budget.best_step, now
        lost, away, barred = self._nodes.remember()
        memory = LauncherMemory(
            phase=self._phase.value,
            launch=self._launch.remember(),
            steps=self._steps.remember(),
            history=self._budget.history,
            best_step=self._best_step,
            took_over=self._budget.took_over,
            lost=lost,
            away=away,
            barred=barred,
            warned_at=self._signals.warned_at,
            ending_for=self._signals.ending_for,
            exit_code=self._exit_code,
            until=self._until,
            notices=self._line.notices,
        )
        if memory != self._remembered:
            self._remembered = memory
            self._inherited.file.write(memory)

    def _resume(self, memory: LauncherMemory) -> None:
        """SeatMessages whose ranks run, or are being ended, connect again. Raises OSError as `_order` does."""
        steps = self._steps.resume(memory.steps)
        self._nodes.resume(memory.lost, memory.away, memory.barred)
        self._budget.resume(memory.history, memory.best_step, memory.took_over)
        self._line.resume(memory.notices)
        self._signals.resume(memory.warned_at, memory.ending_for)
        self._exit_code, self._until = memory.exit_code, memory.until
        step = steps.get(memory.launch.generation)
        self._launch = remembered(memory.launch, step or ended_step(memory.launch.generation))
        self._begun_on = self._launch.seats if self._launch.began_at is not None else ()
        self._steps.checks = self._steps.checks and not self._begun_on and self._launch.number == 0
        self._reports.started_again(self._launch, self._inherited.why)
        self._phase = Phase(memory.phase)
        if step is not None and self._phase in (Phase.RUNNING, Phase.ENDING) and self._launch.began_at is not None:
            self._phase = Phase.REJOINING
            self._rejoin_until = time.monotonic() + max(REJOIN_SECONDS, len(step.nodes) / REJOIN_SEATS_A_SECOND)
            step.awaited = set(step.nodes)
        for one in steps.values():
            if one is not step or self._phase is not Phase.REJOINING:
                self._steps.retire(one)
        if self._phase in (Phase.SEATING, Phase.RUNNING, Phase.ENDING):  # its ranks end with their step
            self._order(self._launch.seats, self._launch.number, self._launch.fault_at)

    def _rejoin(self) -> None:
        """Goes on once all seats of the launch are there again."""
        now = time.monotonic()
        launch = self._launch
        missing = launch.step.awaited.intersection(launch.seats)
        if missing and now < self._rejoin_until and launch.step.program.poll() is None:
            return
        launch.step.give_up_awaiting(launch.seats, now)
        self._reports.rejoined(launch, sorted(missing))
        self._phase = Phase.RUNNING
        if launch.over is not None:
            launch.over_at = now
            self._seats.end(launch, launch.over)
            self._phase = Phase.ENDING
        elif launch.apart:
            self._close(LaunchEnd({}, restart_reason="the launcher was killed while it ended this launch"))

    # -- signals -----------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        for received in self._signals.received():
            match self._signals.meaning(received, time.monotonic()):
                case Meaning.WARNING:
                    self._ask_for_checkpoint(received)
                case Meaning.END:
                    self._end_for(received)

    def _ask_for_checkpoint(self, received: signal.Signals) -> None:
        self._signals.warned_at = time.monotonic()
        self._reports.checkpoint_asked(received)
        if self._phase is Phase.RUNNING:
            self._seats.signal(self._launch, received, warning=True)
        elif self._phase in (Phase.SEATING, Phase.WAITING):
            self._leave_with(EXIT_REQUEUE)

    def _end_for(self, received: signal.Signals) -> None:
        if self._phase is Phase.LEAVING:
            return
        again = self._signals.ending_for is not None
        self._signals.ending_for = received
        self._exit_code = 128 + received
        if self._phase is Phase.RUNNING and not again:
            self._reports.asked_to_end(received, at_once=False)
            self._until = time.monotonic() + self._options.term_seconds
            self._seats.signal(self._launch, signal.SIGTERM, warning=False)
        else:
            self._reports.asked_to_end(received, at_once=True)
            self._start_leaving()

    # -- seating -----------------------------------------------------------------------------------------------

    def _first_seats(self) -> tuple[str, ...]:
        """Good nodes first; where they are too few, what to do about that follows when the others turn out bad."""
        bad = self._nodes.condemned()
        return tuple(sorted(self._nodes.names, key=lambda node: node in bad)[: self._options.nodes])

    def _order(self, seats: tuple[str, ...], launch_number: int, fault_at: float | None) -> None:
        step = self._standbys.take(seats)
        self._launch = Launch(launch_number, seats, step, time.monotonic(), fault_at)
        self._phase = Phase.SEATING
        self._reports.ordered(self._launch)

    def _order_again(self) -> None:
        """Repeats a launch that has not begun, in a new step."""
        self._steps.retire(self._launch.step)
        self._order(self._launch.seats, self._launch.number, self._launch.fault_at)

    def _heed_selfchecks(self, patience_seconds: float) -> None:
        """Once, when all nodes have answered or had the time to. Where most of them fail, the check is the cause."""
        step, age_seconds = self._launch.step, time.monotonic() - self._launch.ordered_at
        if not self._steps.checks or (step.absent and age_seconds <= patience_seconds):
            return
        self._steps.checks = False
        failed = {node: link.checked.failed for node, link in step.links.items() if link.checked.failed}
        impossible = {node: link.checked.impossible for node, link in step.links.items() if link.checked.impossible}
        heeded = not launch_over.are_many(len(failed), len(step.links))
        self._reports.checked(failed, impossible, heeded=heeded)
        for node, why in failed.items() if heeded else ():
            self._nodes.lose(node, f"its self-check failed before the first launch: {why}", away=False)

    def _seat(self) -> None:
        self._heed_selfchecks(self._options.seat_seconds)
        sample = self._launch.seating_sample(time.monotonic(), self._nodes.condemned())
        patience = launch_start.patience(self._options.seat_seconds, self._seating_seconds)
        outcome = launch_start.judge_seating(sample, patience, one_rank_a_gpu=self._options.procs_per_node is None)
        self._nodes.bar(outcome.barred)
        match outcome.next:
            case launch_start.Next.GO if self._awaits_layout(sample.age_seconds):
                pass
            case launch_start.Next.GO:
                self._seating_seconds = self._seating_seconds or sample.age_seconds
                self._go()
            case launch_start.Next.AGAIN:
                self._order_again()
            case launch_start.Next.STEP_FAILED:
                self._try_again_or_give_up(f"srun ended with {sample.srun_status} before any node answered")
            case launch_start.Next.REPLACE:
                self._close(LaunchEnd(outcome.bad))

    def _try_again_or_give_up(self, why: str) -> None:
        """The next step is on the same nodes: none of them is to blame."""
        self._failed_steps += 1
        if self._failed_steps < launch_start.attempts_max(self._launch.number):
            self._order_again()
            return
        self._reports.cannot_start(why)
        self._leave_with(EXIT_CANNOT_START)

    def _awaits_layout(self, age_seconds: float) -> bool:
        """True for the first launch, where it may make a difference: the agent has just been asked."""
        sizes = parallelism_of(group_sizes(self._options.command).split()) or DATA_PARALLEL
        spans = sizes.nodes_of_group(self._launch.ranks_per_node(self._options)) > 1
        first = self._launch.number == 0 and not self._options.keep_rank_order
        return first and spans and self._line.connected and not self._line.has_orders and age_seconds < LAYOUT_SECONDS

    def _arrange(self) -> None:
        """The order of nodes for a launch that begins on other nodes than the one before."""
        launch, layout = self._launch, self._line.orders.layout
        if layout is None or self._options.keep_rank_order or launch.seats == self._begun_on:
            return
        sizes = parallelism_of(layout.group_sizes.split()) or DATA_PARALLEL
        spares = [
            node
            for node in (self._standbys.spares(launch) if self._options.in_process_seconds is None else ())
            if (link := launch.step.link(node)) is not None and link.gpus == launch.step.links[launch.seats[0]].gpus
        ]
        in_place = launch.seats
        each = launch.ranks_per_node(self._options)
        launch.seats = arrange(in_place, spares, each, sizes, layout.domains)
        if launch.seats != in_place:
            self._reports.arranged(launch, in_place)

    def _go(self) -> None:
        self._arrange()
        launch = self._launch
        if not launch.step.links[launch.seats[0]].port:
            self._try_again_or_give_up(f"no free TCP port on {launch.seats[0]} for the gang's ranks to meet at")
            return
        self._begun_on = launch.seats
        launch.began_at = time.monotonic()
        self._budget.begin(launch, launch.began_at)
        self._failed_steps = 0
        ranks = len(launch.seats) * launch.ranks_per_node(self._options)
        restore = self._line.restore_point(ranks) if launch.number > 0 else None
        resume = self._options.resume
        found = None if resume is None else look_for(resume.file)
        self._seats.go(launch, restore, () if resume is None or found is None else resume.arguments)
        self._reports.begun(launch, self._standbys.spares(launch), restore)
        if resume is not None:
            self._reports.resumed(launch, resume, found)
        self._phase = Phase.RUNNING

    # -- watching ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = time.monotonic()
        launch = self._launch
        if self._hang is not None:
            self._await_evidence(self._hang, now)
            return
        self._budget.look(launch, now)
        steps = None if self._options.progress_file is not None else self._line.stepped()
        silences = self._steps.silent(launch.step, self._options.silence_seconds)
        sample = launch.running_sample(now, self._nodes.condemned(), steps, silences)
        silent = frozenset(sample.silent_seconds)
        if silent:
            sample = replace(sample, replaceable=self._replaceable(), domains=self._domains())
        over = launch_over.launch_end(sample, self._options.silence_seconds, self._options.hang_seconds)
        if over is None and silent - launch.silent:
            self._reports.silent(launch, sorted(silent))
        launch.silent = silent
        self._note_first_step(sample)
        if self._signals.ending_for is not None:
            if over is not None or now >= self._until:
                self._start_leaving()
        elif over is not None and over.is_hang:
            self._ask_for_evidence(over, now)
        elif over is not None:
            self._close(over)
        elif (restart := self._line.restart(launch.number)) is not None and not self._signals.warned:
            self._ask_for_evidence(LaunchEnd({}, restart_reason=restart.reason, without=restart.without), now)
        elif sample.age_seconds >= self._options.rearm_seconds and not self._signals.warned:
            self._standbys.start(now)

    def _note_first_step(self, sample: launch_over.RunningSample) -> None:
        """A launch that takes much longer than an earlier one until its first step is reported, and goes on."""
        launch, first = self._launch, self._first_step_seconds
        if sample.step_age_seconds is not None:
            self._first_step_seconds = first or sample.age_seconds - sample.step_age_seconds
        elif first is not None and sample.age_seconds > FIRST_STEP_TIMES * first + FIRST_STEP_SECONDS:
            unknown = self._options.progress_file is None and self._line.silent
            if not launch.late_reported and not unknown:
                launch.late_reported = True
                self._reports.no_first_step(launch, sample.age_seconds, first)

    def _ask_for_evidence(self, over: LaunchEnd, now: float) -> None:
        self._hang, self._asked_until = over, now + EVIDENCE_SECONDS
        self._seats.ask_for_evidence(self._launch)

    def _await_evidence(self, over: LaunchEnd, now: float) -> None:
        silent = self._seats.silent(self._launch)
        if silent and now < self._asked_until and self._signals.ending_for is None:
            return
        self._hang = None
        if self._signals.ending_for is None:
            self._reports.evidence(self._launch, silent)
            self._close(over)

    @property
    def _rules(self) -> Rules:
        answers = self._line.has_orders and not self._line.silent
        return replace(self._options.rules, site_shrinks=self._line.may_shrink, pool_answers=answers)

    def _replaceable(self) -> int:
        """Number of nodes that can be lost without the loss of the allocation. The site's permission to shrink does not
        count: silence alone takes no node from a gang for good.
        """
        rules = self._options.rules
        fewer = len(self._launch.seats) - max(1, rules.nodes_min) if rules.may_shrink else 0
        return len(self._standbys.spares(self._launch)) + max(0, fewer)

    def _domains(self) -> Mapping[str, Sequence[str]]:
        """Domains of its nodes, as far as they are known."""
        known = {} if self._line.orders.layout is None else self._line.orders.layout.domains
        return {node: known[node] for node in self._launch.seats if node in known}

    # -- ending a launch ---------------------------------------------------------------------------------------

    def _close(self, over: LaunchEnd) -> None:
        now = time.monotonic()
        launch = self._launch
        self._budget.close(launch, now)
        launch.close(over, now)
        if launch.began_at is not None:
            self._seats.end(launch, over)
        self._reports.fault(launch, over)
        self._phase = Phase.ENDING

    def _end(self) -> None:
        """Waits until no rank of the launch is left."""
        now = time.monotonic()
        launch = self._launch
        sample = launch.ending_sample(now, self._nodes.unusable(), verdict_may_follow=self._line.has_orders)
        outcome = launch_leftovers.judge_ending(sample, self._options.kill_seconds)
        if outcome.ask_slurm:
            self._steps.kill(launch.step)
        if outcome.slow:
            if launch.slow_at is None:
                self._reports.slow_to_die(launch, outcome.slow)
            launch.slow_at = now
        if outcome.done:
            launch.stuck = outcome.stuck
            self._decide(outcome.bad)

    def _decide(self, bad: Mapping[str, str]) -> None:
        launch, before = self._launch, self._budget.history
        if launch.last_words:
            self._reports.last_words(launch)
        stopping = "the ranks were asked for a last checkpoint" if self._signals.warned else ""
        stepped = self._line.stepped().at is not None
        ended = launch.summary(bad, stopping, self._line.orders.places, stepped=stepped)
        decision = decide(ended, before, self._standbys.spares(launch), self._rules)
        if launch.began_at is not None:
            self._reports.ended(launch, decision, before)
        self._budget.history = decision.history
        self._reports.decision(launch, decision, time.monotonic())
        self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        launch = self._launch
        self._nodes.blame(decision.blamed, launch.away(time.monotonic()))
        again = decision.action is Action.RELAUNCH and launch.began_at is not None
        if not (again and self._standbys.stay(launch, decision.seats)):
            self._steps.retire(launch.step)
        match decision.action:
            case Action.FINISH:
                self._leave_with(decision.exit_code)
            case Action.RELAUNCH if launch.began_at is None:  # its number was not used
                self._order(decision.seats, launch.number, launch.fault_at or launch.over_at)
            case Action.RELAUNCH:
                self._order(decision.seats, launch.number + 1, launch.over_at)
            case Action.WAIT_FOR_NODE:
                self._await(self._options.wait_for_node_seconds)
            case Action.WAIT_FOR_REQUEUE:
                self._exit_code = EXIT_REQUEUE
                self._await(self._options.wait_for_requeue_seconds)
            case Action.FAIL:
                self._leave_with(EXIT_NODES_MISSING)
            case other:
                assert_never(other)

    # -- out of spares -----------------------------------------------------------------------------------------

    def _await(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._phase = Phase.WAITING
        again = self._standbys.replacement_seats(self._launch) is not None
        self._reports.waiting(seconds, for_a_node=not self._asks_requeue, again=again)

    def _wait(self) -> None:
        now = time.monotonic()
        if now >= self._until:
            self._go_on_or_leave()
            return
        if self._asks_requeue:
            self._shrink_meanwhile()
            return
        seats = self._standbys.replacement_seats(self._launch)
        if seats is not None:
            self._order(seats, self._launch.number + 1, None)
        else:
            self._standbys.probe(now)

    def _go_on_or_leave(self) -> None:
        """If none of its nodes is bad, one of them was only suspected of a failure."""
        seats = self._standbys.replacement_seats(self._launch)
        if seats is None:
            self._leave_with(EXIT_REQUEUE)
        else:
            self._exit_code = 0
            self._order(seats, self._launch.number + 1, None)

    def _shrink_meanwhile(self) -> None:
        """The spare for which it waits has become another gang's."""
        seats, rules = self._standbys.seats_left(self._launch), self._rules
        if rules.may_shrink and len(seats) >= max(1, rules.nodes_min):
            self._exit_code = 0
            self._reports.shrunk(seats)
            self._order(seats, self._launch.number + 1, None)

    # -- the end -----------------------------------------------------------------------------------------------

    def _leave_with(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._start_leaving()

    def _start_leaving(self) -> None:
        launch, ending_for, history = self._launch, self._signals.ending_for, self._budget.history
        if launch.began_at is not None and not launch.end_reported and ending_for is not None:
            reason = f"the job was ended by {ending_for.name}"
            self._reports.ended(launch, Decision("L20", Action.FINISH, reason, history), history)
        self._seats.kill(launch)
        self._steps.retire_all()
        self._phase = Phase.LEAVING

    def _leave(self) -> None:
        if self._steps.tidy():
            self._phase = Phase.DONE
            self._reports.done(self._exit_code)
