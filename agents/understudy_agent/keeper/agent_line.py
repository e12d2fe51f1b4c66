"""What the agent asks of the node's keeper, as root: what it holds; and what it reports to it: jobs that have ended."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from understudy_agent.keeper.frames import ClosedError, Frames, number
from understudy_agent.wire import KEEPER_JOBS_MAX, KEEPER_SAVES_MAX, Keeper, KeptJob, KeptSave

SECONDS_MAX = 5.0


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
    jobs = [KeptJob(int(job_id), int(user_id)) for user_id, job_id in status.get("jobs", ())]
    names = ("bytes_held", "bytes_max", "bytes_taken", "bytes_received", "bytes_sent", "refused")
    saves = [_save_of(one) for one in status.get("saves", ())]
    counts = {name: number(status, name, 2**62) for name in names}
    return Keeper(**counts, jobs=jobs[:KEEPER_JOBS_MAX], saves=saves[:KEEPER_SAVES_MAX])


def _save_of(found: dict[str, Any]) -> KeptSave:
    restart_count, launch, step = found["save"]
    return KeptSave(
        found["job_id"],
        found["user_id"],
        restart_count,
        launch,
        step,
        found["world_size"],
        found["ranks"],
        found["bytes"],
        found["at"],
        found["restored"],
        found["blocked_seconds"],
    )
