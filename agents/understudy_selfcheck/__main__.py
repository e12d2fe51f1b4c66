"""`understudy selfcheck`: every GPU of this node computes products that are known; on a node without GPUs its processor
does.

Exit code: 0 when all passed, 1 when one failed, hung or is missing, 2 when the check cannot run here.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from understudy_selfcheck.network import NetworkError
from understudy_selfcheck.node import CheckOptions, Device, NodeResult, check_node
from understudy_selfcheck.peer_jobs import NetworkOrder, take_part
from understudy_selfcheck.stage_runs import Place, run_stages
from understudy_wire.stages import StagesError, StageStatus, line_of, read_stages

WORKER = (sys.executable, "-m", "understudy_selfcheck.worker")
NVIDIA = Path("/proc/driver/nvidia/version")
EXIT = {"passed": 0, "failed": 1, "could_not_run": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """A fault of this program says nothing of the node: Python's own exit code for it would be that of a bad one."""
    options = _parser().parse_args(arguments)
    try:
        return _check(options)
    except Exception:  # noqa: BLE001 - the traceback is what there is to say
        traceback.print_exc()
        return EXIT["could_not_run"]


def _check(options: argparse.Namespace) -> int:
    if options.join is not None:
        return _join(options)
    if options.stages is not None:
        return _run_stages(options)
    order = CheckOptions(
        device="cpu" if options.device == "cpu" else "cuda" if options.device == "cuda" or NVIDIA.exists() else "auto",
        seconds=options.seconds,
        memory_share=options.memory,
        timeout_seconds=options.timeout,
        gpus_expected=None if options.device == "cpu" else options.gpus,
        slow_ratio=options.slow_ratio,
    )
    result = check_node(order, WORKER, dict(os.environ))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n")
    else:
        sys.stdout.write(render(result))
    return EXIT[result.status]


def _run_stages(options: argparse.Namespace) -> int:
    try:
        text = sys.stdin.read() if options.stages == "-" else _read(options.stages)
        stages = read_stages(text)
    except (OSError, UnicodeDecodeError, StagesError) as error:
        sys.stderr.write(f"understudy selfcheck: the stages of {options.stages} cannot be read: {error}\n")
        return EXIT["could_not_run"]
    place = Place(WORKER, dict(os.environ), options.gpus, slow_ratio=options.slow_ratio, network=_network(options))
    results = run_stages(stages, place)
    for one in results:
        sys.stdout.write(f"{one.words}; {one.seconds:.1f} s\n")
    sys.stdout.write(f"{line_of(results)}\n")
    found = {one.status for one in results}
    if StageStatus.FAILED in found:
        return EXIT["failed"]
    return EXIT["passed" if StageStatus.PASSED in found else "could_not_run"]


def _network(options: argparse.Namespace) -> NetworkOrder | None:
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    return NetworkOrder(
        name,
        options.address or name,
        tuple(filter(None, options.peers.split(","))),
        options.partition,
        options.usual,
        options.transport,
    )


def _join(options: argparse.Namespace) -> int:
    try:
        take_part(options.join, options.seconds, dict(os.environ))
    except (NetworkError, OSError, ValueError) as error:
        sys.stderr.write(f"understudy selfcheck: no part in the network test of {options.join}: {error}\n")
        return EXIT["could_not_run"]
    return EXIT["passed"]


def _read(path: str) -> str:
    return "" if path == "default" else Path(path).read_text(encoding="utf-8")


def render(result: NodeResult) -> str:
    lines = [_line(one) for one in result.devices]
    lines += [f"problem: {problem}" for problem in result.problems]
    return "\n".join([*lines, f"selfcheck: {result.status.replace('_', ' ')}"]) + "\n"


def _line(device: Device) -> str:
    where = f"GPU {device.index} {device.uuid}".strip() if device.index is not None else "CPU"
    if device.result is None:
        return f"{where}: {device.status.replace('_', ' ')}: {device.problem}"
    done = device.result
    tried = f"{done.memory_bytes / 2**30:.1f} GiB of memory, {done.wrong_words} wrong words"
    speed = ", ".join(f"{one.kind} {one.tflops:.3g} Tflop/s" for one in done.kinds)
    slow = f"; slow: {device.slow:.2f} times its peers' time" if device.slow else ""
    return (
        f"{where} {device.name}: {device.status}: {done.passes} products, {done.wrong_elements} wrong elements; "
        f"{tried}; {done.seconds:.1f} s; {speed}{slow}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="understudy selfcheck",
        description="Multiply matrices whose product is known on every GPU of this node, and test some of its memory.",
        epilog="Exit code: 0: all passed, 1: one failed, hung or is missing, 2: the check cannot run here.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--stages",
        metavar="FILE",
        help="run the stages of a validation as this TOML file has them, instead of the products alone; "
        '"default": as built in, "-": standard input',
    )
    network = parser.add_argument_group(
        "network stage", "Peers take part by jobs of their own, as Slurm can start them."
    )
    network.add_argument(
        "--peers",
        default="",
        metavar="NODES",
        help="idle nodes, with commas between them; NODE@RESERVATION where one keeps the node for this user",
    )
    network.add_argument("--partition", default="", help="partition of the peers' jobs")
    network.add_argument("--address", default="", help="at which peers reach this node (default: its name)")
    network.add_argument("--usual", type=_positive, metavar="GB/s", help="the fleet's median")
    network.add_argument(
        "--transport", choices=["auto", "tcp", "gloo", "nccl"], default="auto", help="default: NCCL or TCP"
    )
    network.add_argument("--join", metavar="HOST:PORT", help="take part as a peer")
    parser.add_argument(
        "--device",
        choices=["auto", "cuda", "cpu"],
        default="auto",
        help="default: the GPUs, or the processor of a node without GPUs",
    )
    parser.add_argument("--gpus", type=_count, metavar="N", help="number of usable GPUs that the node must have")
    parser.add_argument("--seconds", type=_positive, default=3.0, help="how long each GPU multiplies (default 3)")
    parser.add_argument(
        "--memory", type=_share, default=0.25, metavar="SHARE", help="share of the free memory to test (default 0.25)"
    )
    parser.add_argument(
        "--timeout",
        type=_positive,
        default=120.0,
        metavar="SECONDS",
        help="a GPU that takes longer has failed (default 120)",
    )
    parser.add_argument(
        "--slow-ratio",
        type=_positive,
        metavar="RATIO",
        help="a GPU that takes more than RATIO times its peers' time has failed",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs")
    return int(text)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 0.9:
        raise argparse.ArgumentTypeError(f"{text!r} must be from 0 to 0.9")
    return number


if __name__ == "__main__":
    sys.exit(main())
