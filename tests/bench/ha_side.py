"""One of the control planes of `tests.bench.ha`: the real service, whose Slurm lives in the benchmark's process."""

from __future__ import annotations

import sys
import threading
from multiprocessing.connection import Client, Connection
from typing import Any, cast

from tests.testbed.serve import config_in_arguments, load
from understudy_controlplane.app import Outside
from understudy_controlplane.clock import SystemClock
from understudy_controlplane.lease import Leadership
from understudy_controlplane.serve import LeadLost, serve
from understudy_controlplane.slurm.fenced import seconds_left
from understudy_controlplane.slurm.protocol import Slurm, SlurmUnavailable

KEY = b"bench"
CALL_SECONDS = 10.0


class FarSlurm:
    """Implements `Slurm`: each call goes over a socket, with the name of who calls."""

    def __init__(self, address: str, side: str) -> None:
        self._address, self._side = address, side
        self._of_thread = threading.local()

    def prepare(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            try:
                line = self._line()
                seconds_left(CALL_SECONDS)
                line.send((self._side, name, arguments))
                error, answer = line.recv()
            except (OSError, EOFError) as broken:
                self._of_thread.line = None
                raise SlurmUnavailable(str(broken)) from broken
            if error is not None:
                raise error
            return answer

        return call

    def _line(self) -> Connection:
        if getattr(self._of_thread, "line", None) is None:
            self._of_thread.line = Client(self._address, authkey=KEY)
        return cast(Connection, self._of_thread.line)


class ShiftedClock(SystemClock):
    """The clock of a host is wrong."""

    def __init__(self, ahead_seconds: float) -> None:
        self._ahead_seconds = ahead_seconds

    def now(self) -> float:
        return super().now() + self._ahead_seconds


if __name__ == "__main__":
    Leadership.settled_seconds = 0.0  # the rounds of the benchmark follow each other
    config, path = config_in_arguments()
    address, ahead = sys.argv[-2:]
    slurm = cast(Slurm, FarSlurm(address, path.parent.name))
    try:
        serve(config, path, Outside(slurm, lambda _node: True, ShiftedClock(float(ahead))), load)
    except LeadLost as error:
        raise SystemExit(str(error)) from error
