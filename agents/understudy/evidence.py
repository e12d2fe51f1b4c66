"""What a rank shows of itself when its launcher asks, before a gang that hangs is ended: the stacks of all threads, the
last collective that it entered, and PyTorch's flight recorder.

All of it is written to memory of the launcher's seat on this node: a file system may be what hangs. `faulthandler`
writes the stacks in a signal handler, whatever the threads do. The rest is written by a thread that waits for the
question; it needs Python's lock, which a rank that waits in a collective has released.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from . import recorder
from .collectives import Entered

EVIDENCE_VARIABLE = "UNDERSTUDY_EVIDENCE"
"""`understudy_launcher.evidence` has the same name and signal: the hook cannot import it. A test compares them."""
STACKS_SIGNAL = 50
"""A real-time signal: programs use USR1 and USR2 themselves."""
ENTERED_MAX = 8
"""Last collectives in the flight recorder, for each process group."""
GROUPS_MAX = 32
NAME_CHARACTERS_MAX = 64

_open: list[int] = []
"""Files that `faulthandler` and the thread use for good."""


def answer_when_asked(last: Callable[[], Entered | None], environment: Mapping[str, str] = os.environ) -> None:
    """Once for each process. Where the launcher has named nothing, or it cannot be opened, nothing happens."""
    place = _place(environment)
    if place is None or _open:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        ask, stacks, answers = place
        _open.append(os.open(stacks, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        faulthandler.register(STACKS_SIGNAL, file=_open[0], all_threads=True, chain=False)
        _open.append(os.open(ask, os.O_RDONLY | os.O_CLOEXEC))
        _open.append(os.open(answers, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        threading.Thread(target=_answer, args=(*_open[1:], last), name="understudy evidence", daemon=True).start()


def _place(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Files of this rank: where the question comes from, and where stacks and answers go."""
    try:
        seat, *places = environment[EVIDENCE_VARIABLE].split(",")
        ask, stacks, answers = (int(one) for one in places[int(environment.get("LOCAL_RANK", "0"))].split(":"))
    except (KeyError, ValueError, IndexError):
        return None
    if seat != "self":  # in a container, this process has inherited them
        seat = str(int(seat))
    ask_, stacks_, answers_ = (f"/proc/{seat}/fd/{one}" for one in (ask, stacks, answers))
    return ask_, stacks_, answers_


def _answer(ask: int, answers: int, last: Callable[[], Entered | None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(ask, 1):
            line = json.dumps(_shown(last)).encode() + b"\n"
            while line:
                line = line[os.write(answers, line) :]
            for stream in (sys.stdout, sys.stderr):  # what the training has printed is not lost when it is ended
                with contextlib.suppress(Exception):
                    stream.flush()


def _shown(last: Callable[[], Entered | None]) -> dict[str, Any]:
    entered = last()
    shown: dict[str, Any] = {"last": None if entered is None else [entered.name, entered.sequence, entered.inside]}
    with contextlib.suppress(Exception):  # another release of PyTorch
        shown.update(recorded(recorder.read()))
    return shown


def recorded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The last collectives that the process has entered in each process group, oldest first, as [number, name], and the
    group's ranks. https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html names the fields.
    """
    rows: dict[str, list[list[Any]]] = {}
    for one in content["entries"]:
        if not one.get("is_p2p"):
            of_group = rows.setdefault(_group(one), [])
            of_group.append([int(one["collective_seq_id"]), str(one["profiling_name"])[:NAME_CHARACTERS_MAX]])
            del of_group[:-ENTERED_MAX]
    groups = {_name(name, one): str(one.get("ranks", "")) for name, one in content.get("pg_config", {}).items()}
    return {
        "entered": dict(list(rows.items())[-GROUPS_MAX:]),
        "groups": {name: ranks for name, ranks in list(groups.items())[:GROUPS_MAX] if len(ranks) <= 4096},
    }


def _group(entry: Mapping[str, Any]) -> str:
    return ":".join(map(str, entry.get("process_group") or (entry.get("pg_id", 0),)))[:NAME_CHARACTERS_MAX]


def _name(key: object, group: Mapping[str, Any]) -> str:
    return f"{group.get('name') or key}:{group.get('desc', '')}"[:NAME_CHARACTERS_MAX]
