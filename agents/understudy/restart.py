"""Going on in the same process when the gang is started again (`understudy run --in-process`).

    restartable(train)

calls `train()`, and calls it again whenever the gang of this launch is over and this rank is to be of the next one:
with RANK, MASTER_ADDR, MASTER_PORT, UNDERSTUDY_LAUNCH and the others set anew. `train` joins the gang, restores the
newest checkpoint and trains. What took long before it (imports, the GPU's context, data) is still there.

Belongs here: this process' side of it, over the connection that the launcher's seat left open for it. Must not: any
import outside the standard library; torch is spoken to where the training has imported it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .never_raise import log

Result = TypeVar("Result")

DESCRIPTOR_VARIABLE = "UNDERSTUDY_RESTART_FD"
EXIT_ALONE = 1


def restartable(train: Callable[[], Result], leave: Callable[[], None] | None = None) -> Result:
    """What `train` returns, or raises where nobody can start it again. `leave` is called after each `train` that
    failed, to let go of the old gang; by default torch's process groups are destroyed.

    A rank leaves the old gang by the exception that it gets from a collective whose peers are gone, and TCP connections
    that were opened within `train` are cut then: so the next one gets its exception, too. One that gets none in time is
    ended by its seat, and another process takes its place.
    """
    seat = _connect()
    if seat is None:
        return train()
    while True:
        before = _sockets()
        try:
            return train()
        except Exception as error:
            if not seat.tell_stumbled():
                raise
            log.warning("understudy: this rank leaves its gang, and waits for the next: %r", error)
            traceback.print_exc()
        # Destroyed process groups of gloo keep their connections, and peers would wait on them.
        _cut(_sockets().keys() - before.keys())
        (leave or leave_torch)()
        gc.collect()  # what the failed call still held: its model, above all
        os.environ.update(seat.next_part())


def leave_torch() -> None:
    """Never fails: of a gang that is broken little can be destroyed in good order."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    try:
        distributed.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - whatever the backend makes of it
        log.warning("understudy: the old process group was not destroyed in good order: %r", error)


def _sockets() -> dict[str, int]:
    """This process' sockets, by their number in the kernel, and a descriptor of each."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the fewest imports
        with contextlib.suppress(OSError):  # the descriptor that listed them
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if target.startswith("socket:"):
                found[target] = int(name)
    return found


def _cut(numbers: Iterable[str]) -> None:
    """Both directions of the TCP connections among them. Their owners find them closed."""
    descriptors = _sockets()
    for number in numbers:
        with contextlib.suppress(OSError, KeyError):  # closed meanwhile, or connected to nobody
            connection = socket.socket(fileno=os.dup(descriptors[number]))
            with connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # one that only listens has none, and its owner may not stand its end
                    connection.shutdown(socket.SHUT_RDWR)


class _Seat:
    """The launcher's program on this node, which started this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._parts: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        self._say("restartable")
        threading.Thread(target=self._listen, name="understudy-restart", daemon=True).start()

    def tell_stumbled(self) -> bool:
        """This rank is out of its gang, and waits. False: nobody is there to be told."""
        try:
            self._say("waiting")
        except OSError:
            return False
        return True

    def next_part(self) -> dict[str, str]:
        """Waits as long as there is a seat: it, or the launcher, ends this process when there is no next launch."""
        part = self._parts.get()
        if part is None:
            log.warning("understudy: the launcher is gone: this rank ends")
            os._exit(EXIT_ALONE)
        return part

    def _say(self, what: str) -> None:
        self._connection.sendall(json.dumps({"what": what}).encode() + b"\n")

    def _listen(self) -> None:
        with self._connection.makefile("rb") as lines:
            for line in lines:
                self._parts.put(json.loads(line)["environment"])
        self._parts.put(None)


def _connect() -> _Seat | None:
    """None: not started by a launcher that starts in processes."""
    descriptor = os.environ.pop(DESCRIPTOR_VARIABLE, "")  # not for this process' children
    if not descriptor.isdecimal():
        return None
    try:
        connection = socket.socket(fileno=int(descriptor))
        connection.set_inheritable(False)
        return _Seat(connection)
    except OSError as error:
        log.warning("understudy: restarts in this process are not possible: %r", error)
        return None
