"""The shell script that tests a node before it returns. Pure text.

Belongs here: what is run, and what counts as passed. Must not: judging GPUs (the tests it runs do that).
"""

from __future__ import annotations

import re
import shlex

from controlplane.config import Validation

NOTHING_CHECKED = 3
"""Exit code of a test in which nothing could be looked at: it proves nothing, so it does not pass."""


def gpus_of(gres: str) -> int:
    """8 of "gpu:h100:8(S:0-1)"; 0: none."""
    counts = re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", gres)
    return sum(int(count) for count in counts)


def validation_script(policy: Validation, gres: str, hours: float = 0.0) -> str:
    """Every part is run, also after one that failed: whoever repairs the node wants to know all of it. With `hours`
    all of it is repeated for so long, until a round fails.
    """
    gpus = gpus_of(gres)
    parts: list[str] = []
    if policy.selfcheck:
        program = shlex.quote(shlex.split(policy.selfcheck)[0])
        # Exit code 2: it could not run, as on a node without PyTorch. That is no pass and no failure.
        parts.append(f"if has {program}; then part {shlex.quote(policy.selfcheck)} 2\nelse absent {program}; fi\n")
    if gpus:
        parts.append(
            f"if has nvidia-smi; then part '[ \"$(nvidia-smi -L | grep -c ^GPU)\" -eq {gpus} ]'\n"
            "else absent nvidia-smi; fi\n"
            f"if has all_reduce_perf; then part 'all_reduce_perf -b 8M -e 256M -f 2 -g {gpus} -c 1'\n"
            "else absent all_reduce_perf; fi\n"
        )
    if gpus and policy.dcgm_level:
        parts.append(f"if has dcgmi; then part 'dcgmi diag -r {policy.dcgm_level}'\nelse absent dcgmi; fi\n")
    if policy.command:
        parts.append(f"part {shlex.quote(policy.command)}\n")
    again = f"[ $SECONDS -lt {int(hours * 3600)} ]"
    return "".join([_HEAD, f"while :; do\n{''.join(parts)}{again} || break\n{_ROUND}done\n", _TAIL])


_HEAD = """#!/bin/bash
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
checked=0 failed=0
has() { command -v "$1" >/dev/null 2>&1; }
absent() { echo "== $1: not installed here, left out"; }
part() { # command, exit code that means "could not run"
  echo "== $1"
  bash -c "$1" </dev/null 2>&1
  code=$?
  if [ -n "$2" ] && [ "$code" -eq "$2" ]; then echo "== could not run: left out"; return; fi
  checked=$((checked + 1))
  if [ "$code" -eq 0 ]; then echo "== passed"; else echo "== FAILED with exit code $code"; failed=$((failed + 1)); fi
}
"""

_ROUND = '[ "$failed" -eq 0 ] || break\n[ "$checked" -gt 0 ] || break\n'

_TAIL = f"""echo "== $checked checks, $failed failed"
[ "$failed" -eq 0 ] || exit 1
[ "$checked" -gt 0 ] || {{ echo "== nothing was checked, so nothing is proven"; exit {NOTHING_CHECKED}; }}
"""
