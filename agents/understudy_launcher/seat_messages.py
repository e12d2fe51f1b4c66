"""Messages between the launcher and its seats, noted in the launch and its step."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from understudy_launcher.evidence_findings import read_shown
from understudy_launcher.hub import Hub, SeatLink
from understudy_launcher.launch import Launch
from understudy_launcher.launch_over import LaunchEnd
from understudy_launcher.node_list import fold
from understudy_launcher.options import Options
from understudy_launcher.protocol import Message, encode_each, number, text
from understudy_launcher.reports import Reports
from understudy_launcher.slurm_steps import Step, Steps
from understudy_launcher.standbys import Standbys
from understudy_wire.errors import ProtocolError

SEAT_BYTES_MAX = 256 * 1024
"""Most bytes that a seat sends of its ranks; JSON may need almost three times as much, and a line has a megabyte."""
ALL_BYTES_MAX = 48 * 1024 * 1024
"""Most bytes that the ranks of a gang show before they are ended."""


class SeatMessages:
    """Receives from the seats of all steps; sends to the seats of a launch."""

    def __init__(self, options: Options, hub: Hub, steps: Steps, standbys: Standbys, reports: Reports) -> None:
        self._options = options
        self._hub = hub
        self._steps = steps
        self._standbys = standbys
        self._reports = reports

    # -- to the seats -----------------------------------------------------------------------------------------

    def go(self, launch: Launch, restore: tuple[int, str] | None, appended: Sequence[str] = ()) -> None:
        """Starts the ranks. `restore`: step and path that they restore, while no control plane answers. `appended`:
        arguments besides those of the command.
        """
        links = launch.step.links
        master = links[launch.seats[0]]
        processes = self._options.ranks_on(master.gpus)
        for link in links.values():
            self._hub.wake(link, known=link.node in launch.places)
        common = {
            "launch": launch.number,
            "nodes": len(launch.seats),
            "processes": processes,
            "address": master.address,
            "port": master.port,
            "torchrun": self._options.torchrun,
            "node_list": fold(launch.seats),
            "restore": restore,
            "appended": list(appended),
        }
        lines = encode_each("go", common, "node_rank", range(len(launch.seats)))
        for node, line in zip(launch.seats, lines, strict=True):
            self._hub.send_line(links[node], line)
        launch.torchrun = self._options.torchrun
        launch.processes = 1 if launch.torchrun else processes  # the seat starts one torchrun

    def signal(self, launch: Launch, which: signal.Signals, *, warning: bool) -> None:
        """Sends a signal to the ranks. A warning goes to those alone that have a handler for it: it ends no rank."""
        for link in self._connected(launch).values():
            self._hub.send(link, "signal", number=int(which), warning=warning)

    def ask_for_evidence(self, launch: Launch) -> None:
        connected = self._connected(launch).values()
        bytes_max = min(SEAT_BYTES_MAX, ALL_BYTES_MAX // max(1, len(connected)))
        for link in connected:
            self._hub.send(link, "evidence", bytes_max=bytes_max)

    def silent(self, launch: Launch) -> list[str]:
        """Nodes that have not shown what their ranks are doing, and still may."""
        return [node for node in self._connected(launch) if node not in launch.shown]

    def end(self, launch: Launch, over: LaunchEnd) -> None:
        """Kills all its ranks, except those that can continue in the next launch."""
        for node, link in self._connected(launch).items():
            if self._options.in_process_seconds is not None and node not in over.bad and not over.is_hang:
                launch.keep_seconds = self._options.in_process_seconds
                self._hub.send(link, "keep")
            else:
                self._hub.send(link, "kill")

    def kill(self, launch: Launch) -> None:
        for link in self._connected(launch).values():
            self._hub.send(link, "kill")

    def _connected(self, launch: Launch) -> dict[str, SeatLink]:
        links = {node: launch.step.link(node) for node in launch.seats}
        return {node: link for node, link in links.items() if link is not None}

    # -- from the seats ---------------------------------------------------------------------------------------

    def receive(self, link: SeatLink, message: Message, launch: Launch) -> int | None:
        """The number of a signal that a step in use has received; the launcher decides what follows."""
        step = self._steps.of(link)
        if step is None or link.node not in step.members:
            return None
        try:
            if message["type"] == "signalled":
                self._hub.beat_often(link)
                return number(message, "number") if step.retired_at is None else None
            self._note(step, link, message, launch)
        except ProtocolError as error:
            self._reports.protocol_error(link.node, error)
        return None

    def _note(self, step: Step, link: SeatLink, message: Message, launch: Launch) -> None:
        """Raises ProtocolError."""
        node = link.node
        match message["type"]:
            case "hello":
                self._welcome(step, link, launch)
            case "lost":
                step.lost.add(node)
                step.lost_at = time.monotonic()
            case "warm":
                step.warm.add(node)
                self._reports.warm(node, step.generation, message.get("failed"))
                self._let_rest(step, link, launch)
            case "started" if step is launch.step:
                launch.started.add(node)
                if len(launch.started) == len(launch.seats):
                    self._reports.started(launch, time.monotonic())
            case "exited" if step is launch.step:
                launch.note_exit(node, number(message, "local_rank"), number(message, "status"), time.monotonic())
            case "last_words" if step is launch.step:
                launch.note_last_words(node, number(message, "local_rank"), text(message, "text"))
            case "evidence" if step is launch.step:
                launch.shown[node] = read_shown(node, message)
            case "gone" if step is launch.step:
                launch.gone.add(node)
                if "port" in message:
                    link.port = number(message, "port")

    def _welcome(self, step: Step, link: SeatLink, launch: Launch) -> None:
        """Raises ProtocolError."""
        if link.again is not None:
            self._welcome_again(step, link, launch, link.again)
            return
        step.links[link.node] = link
        step.step_id = link.step
        self._reports.seat(link.node, step.generation)
        if self._options.preload and not (step.retired_at or step.probe):
            self._hub.send(
                link, "prepare", processes=self._options.ranks_on(link.gpus), torchrun=self._options.torchrun
            )
        self._standbys.welcome(step, link.node, launch)
        if not self._options.preload:
            self._let_rest(step, link, launch)

    def _let_rest(self, step: Step, link: SeatLink, launch: Launch) -> None:
        if self._standbys.is_beside(step, link.node, launch):
            self._hub.rest(link)

    def _welcome_again(self, step: Step, link: SeatLink, launch: Launch, again: Mapping[str, Any]) -> None:
        """A seat whose node was lost, or whose step is over, is not needed any more. Raises ProtocolError."""
        if link.node not in step.awaited:
            self._hub.send(link, "leave")
            return
        step.awaited.discard(link.node)
        step.links[link.node] = link
        step.step_id = link.step
        if step is launch.step:
            launch.rejoin(link.node, again, time.monotonic())
