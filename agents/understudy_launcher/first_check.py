"""The self-check of a node before the gang's first launch (`--selfcheck`): its seat runs it before it joins the
launcher, and a node that fails starts no rank.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass

from understudy_launcher.protocol import SECRET_VARIABLE

COMMAND = "understudy selfcheck --seconds 1 --memory 0.05 --timeout 15 ${GPUS:+--gpus $GPUS}"
SECONDS_MAX = 20.0
FAILED_STATUS = 1
DETAIL_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Checked:
    failed: str = ""
    """What the command wrote last; empty: it has not failed."""
    impossible: str = ""
    """Why it could not run, which says nothing of the node."""


def check(command: str, gpus: int, seconds: float = SECONDS_MAX) -> Checked:
    """`gpus` that Slurm gave to the job here are in $GPUS, which is empty for none. Exit code 1 is a failure. Any other
    but 0, or an end that does not come in time, says nothing of the node: a slow file system and a missing program
    look the same.
    """
    environment = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    environment["GPUS"] = str(gpus or "")
    with tempfile.TemporaryFile() as output:
        program = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status = program.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            return Checked(impossible=f"it took more than {seconds:g} s")
        if status == 0:
            return Checked()
        output.seek(0)
        words = _last_words(output.read().decode(errors="replace"))
    if status == FAILED_STATUS:
        return Checked(failed=words or "exit code 1")
    return Checked(impossible=f"exit code {status}{words and f': {words}'}")


def _last_words(text: str) -> str:
    """The line before the last one says what has failed, where the self-check wrote both."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:])[-DETAIL_CHARACTERS_MAX:]
