"""How long a seat waits for a launcher that is silent."""

from __future__ import annotations

import os
import signal
import socket
import time
import types

import pytest

from understudy_launcher.seat import Seat
from understudy_launcher.seat import _parse as parse_seat
from understudy_wire.errors import ProtocolError


def test_a_seat_whose_step_slurm_ends_gives_its_launcher_time_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats are rare until the launcher knows of it: the last one may be older than the seat waits from now on."""
    now = time.monotonic()
    clock = types.SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr("understudy_launcher.seat.time", clock)
    monkeypatch.setattr("understudy_launcher.seat.BEAT_SECONDS", 0.05)
    wakeup, slurm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    seat_end, launcher_end = socket.socketpair()
    seat = Seat(parse_seat(["--port", "1", "--generation", "0", "--certificate", "00", "true"]), ["true"])
    with seat_end, launcher_end, seat._port_holder, seat._selector:
        seat._take_link(seat_end)
        seat._selector.register(wakeup, 1)
        now += 29.0
        os.write(slurm, bytes([signal.SIGTERM]))
        seat._turn(wakeup)
        assert b"signalled" in launcher_end.recv(4096)
        now += 7.0
        seat._turn(wakeup)
        now += 2.0
        with pytest.raises(ProtocolError, match="no message from the launcher for 8 s"):
            seat._turn(wakeup)
    os.close(wakeup)
    os.close(slurm)
