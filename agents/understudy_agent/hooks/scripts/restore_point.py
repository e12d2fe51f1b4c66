"""Requests the restore point of one attempt of a job from the node's agent, and prints it for Slurm's TaskProlog.

Called by `task_prolog` as the job's user: SOCKET JOB ATTEMPT LAUNCH. Needs Python and nothing else. Prints nothing
when no answer comes within a second, or there is nothing to restore. Prints no errors: Slurm shows them to no user.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping

DEADLINE_SECONDS = 1.0
ANSWER_BYTES_MAX = 65_536
STEP_MAX = 0xFFFFFFEF  # what is above stands for the batch script and the like


def ask(path: str, request: "dict[str, object]") -> "dict[str, object]":
    """Raises OSError or ValueError."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Not settimeout: with it connect() fails at once while the agent's queue is full.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(DEADLINE_SECONDS), 0))
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        while not answer.endswith(b"\n"):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(ANSWER_BYTES_MAX)
            answer += part
            if not part or len(answer) > ANSWER_BYTES_MAX:
                raise ValueError("incomplete answer")
    value = json.loads(answer)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def lines(answer: "dict[str, object]") -> "list[str]":
    """The variables for Slurm to set; none where the path does not fit on a line."""
    step, path = answer.get("step"), answer.get("path")
    if answer.get("type") != "restore_point" or not answer.get("managed", True) or not isinstance(step, int):
        return []
    if not isinstance(path, str) or not path.isprintable():
        return []
    found = [f"export UNDERSTUDY_RESTORE_STEP={step}"]
    return [*found, f"export UNDERSTUDY_RESTORE_PATH={path}"] if path else found


def is_batch(step: str) -> bool:
    """The step is the batch script: by its version Slurm does not name it, or does by a word or a number."""
    return not step.isdecimal() or int(step) > STEP_MAX


def note(found: "list[str]", job: str, attempt: str) -> "list[str]":
    """Lines for the job's own output: Slurm writes what follows `print` there. `found` by `lines`."""
    values = [line.partition("=")[2] for line in found]
    if not values:
        return []
    where = f"goes on from step {' ('.join(values)})" if len(values) == 2 else "begins at the first step"
    return [f"print understudy: restart {attempt} {where}; why: understudy explain job {job}"]


def run(environment: "Mapping[str, str]") -> "dict[str, str]":
    """Name and folder of the job's run, as `understudy.identity` finds them."""
    named = environment.get("UNDERSTUDY_RUN", "")
    if named:
        return {"run": named[:255]}
    name, folder = environment.get("SLURM_JOB_NAME", ""), environment.get("SLURM_SUBMIT_DIR", "")
    if not name or not folder or len(folder) > 2048:
        return {}
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    return {"run": (f"{name}[{task}]" if task else name)[:255], "run_folder": folder}


def main() -> None:
    path, job, attempt, launch = sys.argv[1:5]
    request = {
        "type": "job_restore_point",
        "id": 1,
        "job_id": int(job),
        "restart_count": int(attempt),
        "launch": int(launch),
        **run(os.environ),
    }
    found = lines(ask(path, request))
    if attempt != "0" and is_batch(os.environ.get("SLURM_STEP_ID", "")):
        found += note(found, job, attempt)
    sys.stdout.write("".join(f"{line}\n" for line in found))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, TypeError):
        sys.exit(1)
