"""Continuing in the same process when the gang is restarted (`understudy run --in-process`).

    restartable(train)

calls `train()`, and calls it again whenever the gang of this launch has ended and this rank belongs to the next one,
with new values of RANK, MASTER_ADDR, MASTER_PORT, UNDERSTUDY_LAUNCH and the others. `train` joins the gang, restores
the newest checkpoint and trains. What took long before it (imports, the GPU's context, data) is kept.

The launcher's seat left a connection open for this. Imports the standard library only; torch is used where the training
has imported it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .never_raise import log

Result = TypeVar("Result")

DESCRIPTOR_VARIABLE = "UNDERSTUDY_RESTART_FD"
EXIT_WITHOUT_LAUNCHER = 1
RESTORE_POINT = ("UNDERSTUDY_RESTORE_STEP", "UNDERSTUDY_RESTORE_PATH")


def restartable(train: Callable[[], Result], leave: Callable[[], None] | None = None) -> Result:
    """Returns what `train` returns. Raises what it raises where no launcher can restart it. Calls `leave` after each
    `train` that failed, to leave the old gang; by default it destroys torch's process groups.

    A rank leaves the old gang by the exception from a collective whose peers are gone. TCP connections that were opened
    within `train` are closed then, so that its peers get an exception too. Where a rank still waits after a second, as
    for a peer whose node lost its power, the seat orders it to leave: its connections are closed, and NCCL's
    communicators aborted. The seat ends a rank that does not leave in time, and another process takes its place.
    """
    seat = _connect()
    if seat is None:
        return train()
    while True:
        before = _sockets()
        try:
            with seat.gang(before):
                return train()
        except (Exception, LaunchOverError) as error:
            if not seat.report_out_of_gang():
                raise
            log.warning("understudy: this rank left its gang and waits for the next: %r", error)
            traceback.print_exc()
        # Gloo's process groups keep their connections when they are destroyed or aborted, and peers would wait on them.
        _close(_sockets().keys() - before.keys())
        (leave or leave_torch)()
        gc.collect()  # the model of the failed call, above all
        following = seat.next_environment()
        for name in RESTORE_POINT:  # that of an earlier launch is not the newest any more
            os.environ.pop(name, None)
        os.environ.update(following)


class LaunchOverError(BaseException):
    """Raised within `train` where NCCL's communicators were aborted: what their collectives have left is no result."""


class Aborted:
    """NCCL's communicators were aborted. The GPU may then have computed with what a broken collective left: the state
    that it has is not used, and no checkpoint of it announced.
    """

    now = False
    """It has happened in this call of `train`."""
    times = 0
    """How often it has happened in this process."""


def leave_torch() -> None:
    """Never raises: the process groups of a broken gang often cannot be destroyed cleanly."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    try:
        distributed.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - each backend raises its own
        log.warning("understudy: the old process group was not destroyed cleanly: %r", error)


def _abort_nccl(thread: int) -> None:
    """Ends collectives of NCCL that this thread of Python may wait in. The GPU then goes on with whatever is in their
    results, so the thread gets an exception before it runs another line. Never raises.
    """
    c10d: Any = getattr(sys.modules.get("torch.distributed"), "distributed_c10d", None)
    try:
        if c10d is not None and any("nccl" in str(one) for one in c10d._world.pg_backend_config.values()):
            Aborted.now, Aborted.times = True, Aborted.times + 1
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(LaunchOverError))
            c10d._abort_process_group()
    except Exception as error:  # noqa: BLE001 - another release of PyTorch: the seat ends this process
        log.warning("understudy: the communicators were not aborted: %r", error)


def _sockets() -> dict[str, int]:
    """This process' sockets, by their number in the kernel, and a descriptor of each."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that listed them
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[target] = int(name)
    return found


def _close(numbers: Iterable[str]) -> None:
    """Shuts down the TCP connections among them, in both directions."""
    descriptors = _sockets()
    for number in numbers:
        with contextlib.suppress(OSError, KeyError):  # closed meanwhile, or not connected
            connection = socket.socket(fileno=os.dup(descriptors[number]))
            with connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # raises for a listening socket, which stays open
                    connection.shutdown(socket.SHUT_RDWR)


class _Seat:
    """The launcher's program on this node, which started this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._environments: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._inside: tuple[int, dict[str, int]] | None = None
        """The thread that is in `train`, and the sockets that were open before."""
        self._send("restartable", takes_leave=True)
        threading.Thread(target=self._listen, name="understudy-restart", daemon=True).start()

    @contextlib.contextmanager
    def gang(self, before: dict[str, int]) -> Iterator[None]:
        """Around `train`: the seat may order to leave within."""
        Aborted.now = False
        self._inside = threading.get_ident(), before
        try:
            yield
        finally:
            with self._lock:
                self._inside = None

    def _leave(self) -> None:
        with self._lock:
            if self._inside is not None:
                thread, before = self._inside
                _abort_nccl(thread)
                _close(_sockets().keys() - before.keys())

    def report_out_of_gang(self) -> bool:
        """This rank has left its gang and waits. False: the seat is gone."""
        self._inside = None  # where LaunchOverError came after `train`
        try:
            self._send("waiting")
        except OSError:
            return False
        return True

    def next_environment(self) -> dict[str, str]:
        """Waits for the next launch. Seat or launcher end this process where there is none."""
        environment = self._environments.get()
        if environment is None:
            log.warning("understudy: the launcher is gone: this process exits")
            os._exit(EXIT_WITHOUT_LAUNCHER)
        return environment

    def _send(self, kind: str, **more: bool) -> None:
        self._connection.sendall(json.dumps({"type": kind, **more}).encode() + b"\n")

    def _listen(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                environment = json.loads(line).get("environment")
                if environment is None:
                    self._leave()
                else:
                    self._environments.put(environment)
        self._environments.put(None)


def _connect() -> _Seat | None:
    """None: not started by `understudy run --in-process`."""
    descriptor = os.environ.pop(DESCRIPTOR_VARIABLE, "")  # children of this process must not use it
    if not descriptor.isdecimal():
        return None
    try:
        connection = socket.socket(fileno=int(descriptor))
        connection.set_inheritable(False)
        return _Seat(connection)
    except OSError as error:
        log.warning("understudy: this process cannot be restarted in place: %r", error)
        return None
