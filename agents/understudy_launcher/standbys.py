"""The next launch's step, and the spares that could take a seat in it."""

from __future__ import annotations

import time

from understudy_launcher.launch import Launch
from understudy_launcher.launch_over import SETTLE_SECONDS, are_many, lost_to_silence
from understudy_launcher.launch_result import replacements, seats_after
from understudy_launcher.launch_start import START_AGAIN_SECONDS
from understudy_launcher.nodes import Nodes
from understudy_launcher.options import Options
from understudy_launcher.slurm_steps import Step, Steps

PROBE_SECONDS = 15.0


class Standbys:
    """The standbys are in the launch's own step until they are started beside one."""

    def __init__(self, options: Options, nodes: Nodes, steps: Steps) -> None:
        self._options = options
        self._nodes = nodes
        self._steps = steps
        self._step: Step | None = None
        self._start_at = 0.0
        self._probed_at = 0.0

    # -- the next launch's step --------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Every node gets one: interpreters on surviving nodes must be warm, too. Raises OSError where there is no
        srun.
        """
        step = self._step
        if self._options.in_process_seconds is not None:  # the next launch is in the same step
            return
        if step is None:
            if now >= self._start_at:
                self._step = self._steps.start(self._nodes.usable())
        elif step.program.poll() is not None or (step.absent and now - step.asked_at > self._options.seat_seconds):
            if step.links:  # otherwise no single node is the cause
                self._nodes.bar(step.absent)
            self._steps.retire(step)
            self._step, self._start_at = None, now + START_AGAIN_SECONDS

    def take(self, seats: tuple[str, ...]) -> Step:
        """The standbys that are there for these nodes, or a new step. Raises OSError as `start` does."""
        step, self._step = self._step, None
        unusable = self._nodes.unusable()
        # A node that was lost before its seat connected delays the step, and Slurm may end the whole step for it.
        if step is not None and (not step.can_seat(seats) or any(node in unusable for node in step.absent)):
            self._steps.retire(step)
            step = None
        return step or self._steps.start(self._nodes.usable())

    def stay(self, launch: Launch, seats: tuple[str, ...]) -> bool:
        """True if the next launch is in this one's step, where some ranks still are, or as there are too few files for
        another step beside it. Then that is prepared.
        """
        hung = launch.over is not None and launch.over.is_hang  # its seats have killed all their ranks
        some_go_on = self._options.in_process_seconds is not None and not hung
        if not (some_go_on or self._options.no_standbys) or not launch.step.can_seat(seats):
            return False
        for node in launch.seats:
            if node not in seats:
                self._steps.leave(launch.step, node)
        self._step = launch.step
        return True

    def welcome(self, step: Step, node: str, launch: Launch) -> None:
        """A node's seat has connected."""
        if step.probe:
            self._nodes.find_again(node)
            self._steps.retire(step)
        elif step is self._step and node not in launch.places:
            self._steps.leave(launch.step, node)  # the older standby there

    def is_beside(self, step: Step, node: str, launch: Launch) -> bool:
        """True if the seat of this step on this node waits beside one of the gang."""
        return step is self._step and step is not launch.step and node in launch.places

    # -- the spares for it ------------------------------------------------------------------------------------

    def spares(self, launch: Launch) -> list[str]:
        """Spares that have a seat already come first."""
        step = self._step or launch.step
        unusable = self._nodes.unusable()
        free = [node for node in launch.outside(self._nodes.names) if node not in unusable]
        return sorted(free, key=lambda node: step.link(node) is None)

    def notice_bad(self, launch: Launch) -> None:
        """Judges spares only: the gang's own nodes are judged with the launch."""
        step = self._step or launch.step
        # While a node is absent, srun may end the whole step because of it.
        if not step.retired_at and not step.absent:
            outside = launch.outside(self._nodes.names)
            spares = {node for node in outside if node in step.members and node not in step.left}
            now = time.monotonic()
            # If most disconnect, the step has been ended from outside.
            ended = are_many(len(step.disconnected), len(step.nodes)) or now - step.lost_at < SETTLE_SECONDS
            for node in spares & step.disconnected if not ended else ():
                self._nodes.lose(node, "its seat disconnected", away=True)
            seconds = self._options.silence_seconds
            silent = self._steps.silent(step, seconds)
            for node, why in lost_to_silence(silent, len(step.links) - len(step.lost), seconds).items():
                if node in spares:
                    self._nodes.lose(node, why, away=True)
        self._nodes.report_changes(launch.seats)

    def replacement_seats(self, launch: Launch) -> tuple[str, ...] | None:
        """The gang's nodes, with a spare instead of each that cannot be used. None: there are too few spares."""
        seats = self.seats_left(launch)
        return seats if len(seats) == len(launch.seats) else None

    def seats_left(self, launch: Launch) -> tuple[str, ...]:
        """The gang's nodes that can be used, with spares instead of as many others as there are spares."""
        unusable = self._nodes.unusable()
        leaving = [node for node in launch.seats if node in unusable]
        return seats_after(launch.seats, unusable, replacements(leaving, self.spares(launch), {}))

    def probe(self, now: float) -> None:
        """Looks at intervals whether a lost node is back. Raises OSError as `start` does."""
        if now - self._probed_at > PROBE_SECONDS:
            self._probed_at = now
            for node in self._nodes.probe_candidates():  # a step for each, so that a dead one does not delay the others
                self._steps.start([node], probe=True).expires_at = now + PROBE_SECONDS - 1
