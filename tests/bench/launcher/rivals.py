"""The rendezvous of torchrun (c10d), and that of NVRx, with many agents in one process: a thread for each.

`python rivals.py torchrun|nvrx AGENTS SECONDS`: JSON with the seconds from the first agent's call until the last one
has its rank; and, once one agent is gone, from the calls of the others until the last of them has its rank, for which
they wait until it has missed its keep-alives. Settings are those of `tests/bench/recovery/sides.py`. Runs without
Understudy.
"""

import importlib
import json
import logging
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

SETTINGS = {"keep_alive_interval": 1, "keep_alive_max_attempt": 3}
LAST_CALL = 1


class Agents:
    def __init__(self, rival: str, count: int, seconds: float) -> None:
        import torch.distributed as dist

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.store = _store(dist, port, seconds, is_master=True)
        self.handlers = [_handler(rival, dist, port, count, seconds) for _ in range(count)]

    def meet(self, handlers: list[Any]) -> float:
        """Raises the error of the first agent that fails."""
        errors: list[BaseException] = []

        def join(handler: Any) -> None:
            try:
                handler.next_rendezvous()
            except Exception as error:  # noqa: BLE001 - whatever it is, the rival does not get that far
                errors.append(error)

        threads = [threading.Thread(target=join, args=(one,), daemon=True) for one in handlers]
        began = time.monotonic()
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if errors:
            raise errors[0]
        return time.monotonic() - began


def _handler(rival: str, dist: Any, port: int, count: int, seconds: float) -> Any:
    """Handler that `torchrun --nnodes=MIN:COUNT --rdzv-backend=c10d` and `ft_launcher` make on each node."""
    torchs = "torch.distributed.elastic.rendezvous"
    backend_of = importlib.import_module(f"{torchs}.c10d_rendezvous_backend").C10dRendezvousBackend
    rendezvous = importlib.import_module(f"{torchs}.dynamic_rendezvous")
    maker, settings = rendezvous.DynamicRendezvousHandler, SETTINGS
    if rival == "nvrx":
        rendezvous = importlib.import_module("nvidia_resiliency_ext.fault_tolerance._ft_rendezvous")
        maker, settings = rendezvous.FtRendezvousHandler, {}  # its keep-alives cannot be set: 5 s, 3 of them
        vars(rendezvous)["IpcConnector"] = NoRanks
    store = _store(dist, port, seconds, is_master=False)
    timeouts = rendezvous.RendezvousTimeout(join=timedelta(seconds=seconds), last_call=timedelta(seconds=LAST_CALL))
    nodes = (count - 1, count)
    return maker.from_backend(
        "bench", store, backend_of(store, "bench"), *nodes, local_addr="127.0.0.1", timeout=timeouts, **settings
    )


def _store(dist: Any, port: int, seconds: float, is_master: bool) -> Any:
    timeout = timedelta(seconds=seconds)
    return dist.TCPStore("127.0.0.1", port, is_master=is_master, timeout=timeout, wait_for_workers=False)


class NoRanks:
    """Replaces NVRx's connection to the ranks of its node: there are none, and all agents are in one process."""

    def __init__(self, *_: Any) -> None:
        """Takes the arguments of a file."""

    def start_receiving(self) -> None:
        """Nothing comes."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_options: {}


def main(rival: str, count: int, seconds: float) -> None:
    logging.disable()
    agents = Agents(rival, count, seconds)
    found = {"start_seconds": agents.meet(agents.handlers)}
    left = agents.handlers[:1] + agents.handlers[2:]
    agents.handlers[1]._stop_heartbeats()
    found["one_lost_to_new_go_seconds"] = agents.meet(left)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # their keep-alive threads go on


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
