"""Asks the node's agent for the restore point of one attempt of a job, and prints it for Slurm's TaskProlog.

Called by `task_prolog` as the job's user: SOCKET JOB ATTEMPT LAUNCH. Needs Python and nothing else. Prints nothing
when there is no answer within a second, or nothing to restore; never complains, because nobody would read it.
"""

import json
import socket
import sys
import time

DEADLINE_SECONDS = 1.0
ANSWER_BYTES_MAX = 65_536


def ask(path: str, question: "dict[str, object]") -> "dict[str, object]":
    """Raises OSError or ValueError."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(DEADLINE_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(question).encode() + b"\n")
        while not answer.endswith(b"\n"):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(ANSWER_BYTES_MAX)
            answer += part
            if not part or len(answer) > ANSWER_BYTES_MAX:
                raise ValueError("half an answer")
    value = json.loads(answer)
    if not isinstance(value, dict):
        raise TypeError("no answer")
    return value


def lines(answer: "dict[str, object]") -> "list[str]":
    """What Slurm is to set; nothing where the path could not stand on a line."""
    step, path = answer.get("step"), answer.get("path")
    if answer.get("type") != "restore_point" or not answer.get("managed", True) or not isinstance(step, int):
        return []
    if not isinstance(path, str) or not path.isprintable():
        return []
    found = [f"export UNDERSTUDY_RESTORE_STEP={step}"]
    return [*found, f"export UNDERSTUDY_RESTORE_PATH={path}"] if path else found


def main() -> None:
    path, job, attempt, launch = sys.argv[1:5]
    question = {
        "type": "job_restore_point",
        "id": 1,
        "job_id": int(job),
        "restart_count": int(attempt),
        "launch": int(launch),
    }
    sys.stdout.write("".join(f"{line}\n" for line in lines(ask(path, question))))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, TypeError):
        sys.exit(1)
