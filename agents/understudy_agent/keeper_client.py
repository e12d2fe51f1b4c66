"""What the agent asks of the node's keeper, as root: what it holds; and what it reports to it: jobs that have ended."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from understudy_wire.errors import ClosedError
from understudy_wire.frames import Frames, number
from understudy_wire.messages import KEEPER_JOBS_MAX, KEEPER_SAVES_MAX, KEPT_RANKS_MAX, Keeper, KeptJob, KeptSave
from understudy_wire.values import SIZE_MAX

SECONDS_MAX = 5.0
JOB_ID_MAX = 2**31 - 1


def exchange(path: Path, ended: Iterable[KeptJob]) -> Keeper | None:
    """Frees the jobs that have ended, and returns what is held; None: there is no keeper. Raises ProtocolError and
    OSError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(SECONDS_MAX)
        try:
            link.connect(os.fspath(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        with contextlib.closing(Frames(link)) as frames:
            try:
                for job in ended:
                    frames.send({"type": "free", "job_id": job.job_id, "user_id": job.user_id})
                    frames.receive()
                frames.send({"type": "status"})
                status = frames.receive()
            except ClosedError as error:
                raise ConnectionResetError("the keeper closed the connection") from error
    jobs = [
        KeptJob(int(job_id), int(user_id)) for user_id, job_id in status.get("jobs", ()) if int(job_id) <= JOB_ID_MAX
    ]
    names = ("bytes_held", "bytes_max", "bytes_taken", "bytes_received", "bytes_sent", "refused")
    saves = [one for one in map(_save_of, status.get("saves", ())) if one is not None]
    counts = {name: min(number(status, name, 2**62), SIZE_MAX) for name in names}
    return Keeper(**counts, jobs=jobs[:KEEPER_JOBS_MAX], saves=saves[:KEEPER_SAVES_MAX])


def _save_of(found: dict[str, Any]) -> KeptSave | None:
    """None: a report cannot have it. Any process names numbers and ranks of its own."""
    restart_count, launch, step = found["save"]
    save = KeptSave(
        found["job_id"],
        found["user_id"],
        restart_count,
        launch,
        step,
        found["world_size"],
        found["ranks"][:KEPT_RANKS_MAX],
        found["bytes"],
        found["at"],
        found["restored"],
        found["blocked_seconds"],
    )
    try:
        return msgspec.convert(msgspec.to_builtins(save), KeptSave)
    except msgspec.ValidationError:
        return None
