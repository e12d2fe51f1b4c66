"""The shell scripts of the control plane's jobs on a node: validation, and the reset of its GPUs. Pure text.

Belongs here: what is run, what counts as passed, and how the end of its output comes back. Must not: judging GPUs (the
programs that it runs do).
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from understudy_controlplane.config import Repair, RunStages, Validation
from understudy_wire.stages import Stage, StageName, toml_of

NOTHING_CHECKED = 3
"""Exit code of a validation in which nothing could be checked: it proves nothing, so it does not pass."""

RELEASE_SECONDS = 3
"""How long the agent may take to release NVML."""

_PATH = "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH\n"

LAST_OUTPUT_BYTES = 700
"""Slurm takes a comment of 1024 characters."""

_LAST_OUTPUT = re.compile(r"output:([A-Za-z0-9+/=]+)")


def with_last_output(script: str) -> str:
    """The same script, with the end of its output in the job's comment: for nodes that share no file system with the
    control plane. Encoded, because the output might contain the word that makes a job managed.
    """
    return f"""#!/bin/bash
output=$(bash -c {shlex.quote(script)} </dev/null 2>&1 | tail -c {LAST_OUTPUT_BYTES}; exit "${{PIPESTATUS[0]}}")
code=$?
scontrol update JobId="$SLURM_JOB_ID" Comment="output:$(printf %s "$output" | base64 -w0)"
exit $code
"""


def last_output(comment: str) -> str:
    """Empty where there are none."""
    found = _LAST_OUTPUT.fullmatch(comment)
    try:
        return base64.b64decode(found[1]).decode(errors="replace").strip() if found else ""
    except ValueError:
        return ""


def reset_script(policy: Repair, node: str, gpus: Sequence[str]) -> str:
    """During a reset no process may hold the GPUs' device files: a file in the agent's run directory makes it release
    them. Evidence that the reset would erase is printed before it. The exit code is the reset's.
    """
    evidence = ""
    if policy.evidence_command:
        seconds = max(1, int(policy.reset_timeout_seconds / 2))
        evidence = f"timeout -k 10 {seconds} sh -c {shlex.quote(policy.evidence_command)} </dev/null 2>&1\n"
    return f"""#!/bin/sh
{_PATH}export UNDERSTUDY_GPU={shlex.quote(",".join(gpus))}
{evidence}release={shlex.quote(policy.agent_run_directory.replace("%n", node))}/release-nvml
if [ -d "${{release%/*}}" ] && touch "$release"; then
  trap 'rm -f "$release"' EXIT
  trap 'exit 143' HUP INT TERM
  sleep {RELEASE_SECONDS}
fi
sh -c {shlex.quote(policy.reset_command)} 2>&1
"""


@dataclass(frozen=True, slots=True)
class Network:
    """Participants of the network stage, and what is usual."""

    address: str  # of the node
    peers: tuple[str, ...]  # `n2`, or `n2@reservation`
    partition: str
    usual: float | None  # the fleet's median in GB/s


def validation_script(
    policy: Validation,
    gpus: int,
    hours: float = 0.0,
    suspect: bool = False,
    network: Network | None = None,
    ports: Sequence[str] = (),
) -> str:
    """Every part is run, also after one that failed: the administrator who repairs the node needs all results. With
    `hours` it is repeated for that time, until a round fails. The network of a burn-in has a job of its own, once the
    nodes beside it are done as well. `gpus`: whole ones, which all have to compute; 0: none, or MIG instances.
    `ports`: how many fabric ports have to be up, and the labels of those that do not count; empty: not checked.
    """
    parts: list[str] = []
    if policy.selfcheck:
        program = shlex.quote(shlex.split(policy.selfcheck)[0])
        command = shlex.quote(_selfcheck(policy, gpus, suspect))
        # Exit code 2: it could not run, as on a node without PyTorch. That is no pass and no failure.
        parts.append(f"if has {program}; then part {command} 2\nelse absent {program}; fi\n")
    if _runs_stages(policy, hours):
        parts.append(_stages(policy, gpus, suspect))
    if gpus:
        bandwidth = policy.all_reduce_gbps_min if gpus > 1 else 0  # one GPU alone sends nothing
        parts.append(
            f"if has nvidia-smi; then look 'gpus {gpus}'; look 'nvlinks {policy.nvlinks_active_min}'\n"
            "else absent nvidia-smi; fi\n"
            f"if has all_reduce_perf; then part 'all_reduce {gpus} {bandwidth:g}'\n"
            "else absent all_reduce_perf; fi\n"
        )
    if gpus and policy.dcgm_level:
        parts.append(f"if has dcgmi; then part 'dcgmi diag -r {policy.dcgm_level}'\nelse absent dcgmi; fi\n")
    if ports:
        parts.append(f"look {shlex.quote(shlex.join(('ports', *ports)))}\n")
    if policy.command:
        parts.append(f"part {shlex.quote(policy.command)}\n")
    again = f"[ $SECONDS -lt {int(hours * 3600)} ]"
    rounds = f"while :; do\n{''.join(parts)}{again} || break\n{_ROUND}done\n"
    tested = _network(policy, network) if network is not None and not hours and _runs_stages(policy, hours) else ""
    return "".join(["#!/bin/bash\n", _PATH, _HEAD, rounds, tested, _TAIL])


def network_script(policy: Validation, network: Network) -> str:
    """The network alone, of a node that has passed its burn-in. That it could not be tested is no failure."""
    return "".join(["#!/bin/bash\n", _PATH, _HEAD, _network(policy, network), _END])


def _selfcheck(policy: Validation, gpus: int, suspect: bool) -> str:
    """Self-check command. With `--gpus`, GPUs that CUDA cannot use are a failure and not "could not run". What the site
    says itself stays.

    A suspect may be one for being slow, which no wrong number would show.
    """
    words = [policy.selfcheck]
    if gpus and "--gpus" not in policy.selfcheck:
        words.append(f"--gpus {gpus}")
    if suspect and policy.slow_ratio and "--slow-ratio" not in policy.selfcheck:
        words.append(f"--slow-ratio {policy.slow_ratio:g}")
    return " ".join(words)


def _stages(policy: Validation, gpus: int, suspect: bool) -> str:
    """Their results are the last line of the output, of the last round."""
    program = shlex.quote(shlex.split(policy.stages_command)[0])
    words = [policy.stages_command, "--stages -"]
    words += [f"--gpus {gpus}"] if gpus else []
    words += [f"--slow-ratio {policy.slow_ratio:g}"] if suspect and policy.slow_ratio else []
    on_the_node = {name: stage for name, stage in policy.all_stages.items() if name is not StageName.NETWORK}
    off = {StageName.NETWORK: Stage(enabled=False)}
    text = shlex.quote(toml_of(on_the_node | off))
    call = f"stages {shlex.quote(' '.join(words))} {text}; results=$line"
    return f"if has {program}; then {call}\nelse absent {program}; fi\n"


def _network(policy: Validation, network: Network) -> str:
    """Once, at the end, of a node on which nothing else has failed."""
    stage = policy.all_stages[StageName.NETWORK]
    if not stage.enabled:
        return ""
    program = shlex.quote(shlex.split(policy.stages_command)[0])
    words = [policy.stages_command, "--stages -", f"--address {shlex.quote(network.address)}"]
    words += [f"--peers {shlex.quote(','.join(network.peers))}"] if network.peers else []
    words += [f"--partition {shlex.quote(network.partition)}"] if network.partition else []
    words += [f"--usual {network.usual:g}"] if network.usual else []
    alone = {name: Stage(enabled=False, path="/") for name in StageName} | {StageName.NETWORK: stage}
    call = f"stages {shlex.quote(' '.join(words))} {shlex.quote(toml_of(alone))}; network=$line"
    # No free peer proves nothing about the node; neither does a good network of what else it has.
    return f'if [ "$failed" -eq 0 ] && has {program}; then {call}; [ "$code" -ne 0 ] || checked=$((checked - 1)); fi\n'


def _runs_stages(policy: Validation, hours: float) -> bool:
    return policy.run_stages is RunStages.ALWAYS or (policy.run_stages is RunStages.BURN_IN and hours > 0)


_HEAD = r"""checked=0 failed=0 wrong= results= network=
has() { command -v "$1" >/dev/null 2>&1; }
absent() { echo "== $1: not installed here, skipped"; }
part() { # command, exit code that means "could not run"
  echo "== $1"
  bash -c "$1" </dev/null 2>&1
  code=$?
  verdict "$1" "$2"
}
stages() { # command, its standard input
  echo "== $1"
  output=$(bash -c "$1" <<<"$2" 2>&1)
  code=$?
  grep -v '^understudy-stages ' <<<"$output"
  line=$(grep '^understudy-stages ' <<<"$output" | tail -n 1)
  verdict "$1" 2
}
verdict() { # command, exit code that means "could not run"
  if [ -n "$2" ] && [ "$code" -eq "$2" ]; then echo "== could not run: skipped"; return; fi
  checked=$((checked + 1))
  if [ "$code" -eq 0 ]; then echo "== passed"; return; fi
  echo "== FAILED with exit code $code"
  failed=$((failed + 1)) wrong="$wrong; ${1:0:60}"
}
look() { # command: that it finds nothing wrong proves nothing, for nothing has computed
  part "$1"
  [ "$code" -ne 0 ] || checked=$((checked - 1))
}
gpus() { # how many the driver should list
  [ "$(nvidia-smi -L | grep -c ^GPU)" -eq "$1" ]
}
nvlinks() { # how many of each GPU should be up; 0: as many as of that GPU of the node that has most
  nvidia-smi nvlink -s | awk -v least="$1" '
    /^GPU / { gpu = $2; up[gpu] = 0 }
    /Link [0-9]+: *[0-9.]+ *GB/ { up[gpu]++ }
    END {
      need = least
      for (gpu in up) if (least == 0 && up[gpu] > need) need = up[gpu]
      for (gpu in up) if (up[gpu] < need) { print "GPU " gpu " " up[gpu] " of " need " NVLinks are up"; bad = 1 }
      exit bad
    }'
}
all_reduce() { # GPUs, least bandwidth in GB/s; 0: any
  output=$(all_reduce_perf -b 8M -e 256M -f 2 -g "$1" -c 1 2>&1)
  code=$?
  echo "$output"
  [ "$code" -eq 0 ] || return "$code"
  echo "$output" | awk -v least="$2" '
    /Avg bus bandwidth/ { sub(/.*: */, ""); measured = $1 }
    END { if (measured + 0 < least) { print "bandwidth of " measured " GB/s, less than " least; exit 1 } }'
}
ports() { # how many InfiniBand or RoCE ports should be up, and those that do not count: mlx5_8/1
  up=0
  for state in /sys/class/infiniband/*/ports/*/state; do
    device=${state#/sys/class/infiniband/}
    number=${state%/state}
    case " ${*:2} " in *" ${device%%/*}/${number##*/} "*) continue ;; esac
    grep -q ': ACTIVE$' "$state" 2>/dev/null && up=$((up + 1))
  done
  echo "$up ports are active, of $1 that should be"
  [ "$up" -ge "$1" ]
}
export -f gpus nvlinks all_reduce ports
"""

_ROUND = '[ "$failed" -eq 0 ] || break\n[ "$checked" -gt 0 ] || break\n'

_END = """[ -z "$network" ] || echo "$network"
[ "$failed" -eq 0 ]
"""

_TAIL = f"""echo "== $checked checks, $failed failed${{wrong:+: ${{wrong#; }}}}"
[ -z "$results" ] || echo "$results"
[ -z "$network" ] || echo "$network"
[ "$failed" -eq 0 ] || exit 1
[ "$checked" -gt 0 ] || {{ echo "== nothing was checked that could prove it well"; exit {NOTHING_CHECKED}; }}
"""
