"""The parts of `make hardware`. Each runs programs of its own with a time limit, and fails for itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tests import PYTHON_PATH
from tests.hardware.differences import differences, driver_like, shape_of
from tests.hardware.readings import NodeRead
from tests.testbed.fake_nvml import DRIVERS, BuildError, FakeGpus, Shape, build, shaped_node
from understudy_controlplane.cli.analyze.inspector_files import InspectorFileError, analyze_collectives
from understudy_wire.stages import read_stages, results_of, toml_of

KERNEL_LOG = Path("/dev/kmsg")
RECORD_BYTES_MAX = 8192
SELFCHECK_SECONDS = 5
BEFORE_FIRST_TASK = ("--device", "cuda", "--seconds", "1", "--memory", "0.05", "--timeout", "15")
"""Options of agents/understudy_agent/hooks/scripts/first_selfcheck."""

STAGE_SECONDS = 3.0
SYSTEMD = Path("/run/systemd/system")
GPUS_OF_GANG = 2
STATE_MEGABYTES = 1024
NCCL_SECONDS_MAX = 150.0
INSPECTOR_INTERVAL = {"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "100000"}
INSPECTOR_CHARACTERS_MAX = 4000


class NotPossibleError(Exception):
    """What this machine lacks for a part."""


class Part(msgspec.Struct, frozen=True):
    name: str
    outcome: str  # "done", "failed" or "not possible"
    seconds: float
    lines: list[str] = []  # for people
    values: dict[str, Any] = {}  # all that was measured


Found = tuple[list[str], dict[str, Any]]


def run_part(name: str, part: Callable[[float], Found], seconds_max: float) -> Part:
    begun = time.monotonic()

    def ended(outcome: str, lines: list[str], values: dict[str, Any]) -> Part:
        return Part(name, outcome, round(time.monotonic() - begun, 1), lines, values)

    if seconds_max <= 0:
        return ended("not possible", ["no time was left"], {})
    try:
        return ended("done", *part(seconds_max))
    except NotPossibleError as error:
        return ended("not possible", [str(error)], {})
    except subprocess.TimeoutExpired as error:
        return ended("failed", [f"it took longer than {error.timeout:.0f} s"], {})
    except (OSError, RuntimeError, BuildError, msgspec.MsgspecError, json.JSONDecodeError) as error:
        return ended("failed", [f"{type(error).__name__}: {error}"], {})


def output_of(
    module: str,
    arguments: Sequence[str],
    seconds_max: float,
    more: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> str:
    """What a program of this repository prints, with `within` before its command. Raises RuntimeError with the end of
    its errors.
    """
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **(more or {})}
    command = [*within, sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds_max, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{module} ended with {done.returncode}: {(done.stderr or done.stdout)[-1000:].strip()}")
    return done.stdout


def read_real(seconds_max: float) -> NodeRead:
    return msgspec.json.decode(output_of("tests.hardware.readings", (), seconds_max), type=NodeRead)


def read_fake(shape: Shape, driver: str, seconds_max: float) -> NodeRead:
    with tempfile.TemporaryDirectory(prefix="understudy-hardware-") as folder:
        library, state = build(Path(folder) / "lib"), Path(folder) / "gpus"
        FakeGpus(state).write(shaped_node("n1", shape, 1, **DRIVERS[driver]), driver_version=driver)
        fake = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_STATE": str(state)}
        return msgspec.json.decode(output_of("tests.hardware.readings", (), seconds_max, fake), type=NodeRead)


def readings(seconds_max: float) -> Found:
    """Each reading of each GPU, and in what it differs from the fake's."""
    real = read_real(seconds_max)
    values: dict[str, Any] = {"real": msgspec.to_builtins(real)}
    if real.error or not real.gpus:
        raise NotPossibleError(f"NVML cannot be used: {real.error or 'it lists no GPU'}")
    lines = [
        f"driver {real.driver_version}, {len(real.gpus)} GPUs",
        "",
        "| reading | GPU 0 | ms | error |",
        "|---|---|---|---|",
    ]
    for read in real.gpus[0].readings:
        shown = ", ".join(f"{name} {value}" for name, value in read.values.items())
        code = f" ({read.error_code})" if read.error_code else ""
        lines.append(f"| {read.name} | {shown} | {max(read.milliseconds):.2f} | {read.error}{code} |")
    lines.append("")
    name = str(real.gpus[0].values().get("name", ""))
    shape = shape_of(name)
    if shape is None:
        return [*lines, f"The tests have no fake of {name}."], values
    driver = driver_like(real.driver_version)
    found = differences(real, read_fake(shape, driver, seconds_max))
    lines.append(f"Differences from the fake ({shape.gpu.get('name', 'NVIDIA H100 80GB HBM3')}, driver {driver}):")
    return [*lines, *(f"- {one}" for one in found or ["none"])], values | {"differences": found}


def kernel_log(_seconds_max: float) -> Found:
    """Finds out if the kernel's log can be read, and how many of its lines are of the driver."""
    try:
        descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise NotPossibleError(f"{KERNEL_LOG} cannot be read: {error.strerror}; run it as root") from error
    lines, of_driver = 0, 0
    try:
        while record := os.read(descriptor, RECORD_BYTES_MAX):
            lines, of_driver = lines + 1, of_driver + (b"NVRM" in record)
    except BlockingIOError:
        pass  # its end
    finally:
        os.close(descriptor)
    return [f"{lines} lines, {of_driver} of the driver"], {"lines": lines, "of_driver": of_driver}


def selfcheck(seconds_max: float) -> Found:
    _need_torch()
    arguments = ("--device", "cuda", "--seconds", str(SELFCHECK_SECONDS), "--json")
    found = json.loads(output_of("understudy_selfcheck", arguments, seconds_max))
    devices = [f"GPU {one['index']}: {one['status']}" for one in found["devices"]]
    begun = time.monotonic()
    quick = json.loads(output_of("understudy_selfcheck", (*BEFORE_FIRST_TASK, "--json"), seconds_max))
    seconds = round(time.monotonic() - begun, 1)
    first = f"as the TaskProlog runs it before a job's first task: {quick['status']}, {seconds} s"
    return [f"self-check: {found['status']}", *devices, first], found | {"before_first_task_seconds": seconds}


def validation(seconds_max: float) -> Found:
    """The stages of a validation, each for a few seconds."""
    _need_torch()
    stages = {name: replace(one, seconds=min(one.seconds, STAGE_SECONDS)) for name, one in read_stages("").items()}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(toml_of(stages))
        file.flush()
        output = output_of("understudy_selfcheck", ("--stages", file.name), seconds_max)
    results, _ = results_of(output)
    return [f"{one.words} ({one.seconds:.1f} s)" for one in results], {"stages": msgspec.to_builtins(results)}


def hook(seconds_max: float) -> Found:
    """What a step costs the training thread, and whether the hook names its GPU as NVML does."""
    _need_torch()
    deadline = time.monotonic() + seconds_max
    gpus = {str(gpu.index): str(gpu.values().get("uuid", "")) for gpu in read_real(seconds_max).gpus}
    lines: list[str] = []
    found: dict[str, Any] = {"uuids": {}}
    for visible, uuid in [*gpus.items(), *((uuid, uuid) for uuid in [*gpus.values()][-1:])]:
        more = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        step = json.loads(output_of("tests.hardware.hook_on_cuda", (), deadline - time.monotonic(), more))
        found["uuids"][visible] = step
        right = "as NVML names it" if step["uuid"] == uuid else f"but NVML names it {uuid}"
        lines.append(
            f"CUDA_VISIBLE_DEVICES={visible}: the hook names {step['uuid'] or 'no GPU'}, {right}; a step costs "
            f"{step['microseconds']:.1f} µs more than without the hook"
        )
    constrained, found["cgroup"] = hook_in_cgroup(gpus, deadline - time.monotonic())
    return [*lines, constrained], found


def hook_in_cgroup(gpus: Mapping[str, str], seconds_max: float) -> tuple[str, dict[str, Any]]:
    """The last GPU as the only one that a cgroup allows, as of a job where Slurm's ConstrainDevices is set: CUDA counts
    from 0 there.
    """
    index, uuid = list(gpus.items())[-1]
    if os.geteuid() or not SYSTEMD.is_dir() or shutil.which("systemd-run") is None:
        return "Under a cgroup that allows one GPU it was not tried: that needs root and systemd.", {}
    devices = [f"/dev/nvidia{index}", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "char-pts"]
    allowed = [f"--property=DeviceAllow={device} rw" for device in devices]
    slurm = [f"--setenv=SLURM_STEP_GPUS={index}", "--setenv=CUDA_VISIBLE_DEVICES=0"]
    scope = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--property=DevicePolicy=closed", *allowed]
    scope += [*slurm, f"--setenv=PYTHONPATH={PYTHON_PATH}", f"--working-directory={Path.cwd()}"]
    try:
        step = json.loads(output_of("tests.hardware.hook_on_cuda", (), seconds_max, within=scope))
    except RuntimeError as error:
        return f"Under a cgroup that allows one GPU it failed: {error}", {}
    right = "as NVML names it" if step["uuid"] == uuid else f"but NVML names it {uuid}"
    return f"under a cgroup that allows GPU {index}: the hook names {step['uuid'] or 'no GPU'}, {right}", step


def training(seconds_max: float) -> Found:
    """What the test of the GPU between steps and a step that is computed again cost, and whether they work there."""
    _need_torch()
    found = json.loads(output_of("tests.hardware.training_on_cuda", (), seconds_max))
    between, again, flipped = found["between_steps"], found["again"], found["again_with_a_flipped_bit"]
    same = "the same bits each time" if again["same"] else "other bits each time: it was given up"
    lines = [
        f"test between steps: a step of {between['step_milliseconds']:.1f} ms takes "
        f"{between['more_milliseconds']:.1f} ms more with it; its multiplication takes "
        f"{between['multiplication_milliseconds']:.3f} ms",
        f"a step computed again, {again['step_milliseconds']:.1f} ms: {again['runs']} runs, {same}"
        + (", and reported as wrong" if again["reported"] else ""),
        f"a flipped bit was {'reported' if flipped['reported'] else 'not reported'}",
    ]
    return lines, found


def in_process(seconds_max: float) -> Found:
    """A gang of two ranks goes on without one of its processes: by NCCL where there are two GPUs; by gloo on one, too,
    which takes the state of the ranks from GPU to GPU through the host.
    """
    _need_torch()
    count = len(read_real(seconds_max).gpus)
    if not count:
        raise NotPossibleError("a gang needs a GPU, and there is none")
    deadline = time.monotonic() + seconds_max
    size = ("--megabytes", str(STATE_MEGABYTES))
    by_gloo = json.loads(output_of("tests.hardware.in_process", ("--backend", "gloo", *size), seconds_max))
    lines, found = [described(by_gloo)], {"gloo": by_gloo}
    if count < GPUS_OF_GANG:
        lines.append(f"nccl: not tried: it needs {GPUS_OF_GANG} GPUs, and there is {count}")
        return lines, found
    left = deadline - time.monotonic()
    found["nccl"] = json.loads(output_of("tests.hardware.in_process", ("--backend", "nccl", *size), left))
    return [*lines, described(found["nccl"])], found


def nccl(seconds_max: float) -> Found:
    """What NCCL's RAS service and Inspector show of a communicator of one rank. Several ranks were never tried."""
    _need_torch()
    if not read_real(seconds_max).gpus:
        raise NotPossibleError("NCCL needs a GPU, and there is none")
    with tempfile.TemporaryDirectory(prefix="understudy-hardware-") as folder:
        dumps = {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": folder, **INSPECTOR_INTERVAL}
        found = json.loads(output_of("tests.hardware.nccl_on_cuda", (), min(seconds_max, NCCL_SECONDS_MAX), dumps))
        files = sorted(Path(folder).iterdir())
        found["inspector"] = {one.name: one.read_text(errors="replace")[:INSPECTOR_CHARACTERS_MAX] for one in files}
        inspector = read_inspector(Path(folder))
    lines = [f"NCCL {found['version']}: the agent read {found['read']}", f"flight recorder: {found['recorder']}"]
    if found["broken"]:
        raise RuntimeError("; ".join([*found["broken"], *lines]))
    return [*lines, inspector], found


def read_inspector(folder: Path) -> str:
    """What `understudy analyze collectives` makes of its files. Raises RuntimeError for files that it does not read."""
    if not os.environ.get("NCCL_PROFILER_PLUGIN"):
        return "Inspector: not tried: NCCL_PROFILER_PLUGIN names no plugin, and PyTorch's NCCL comes without it"
    if not any(folder.iterdir()):
        return "Inspector: it wrote no file of a communicator of one rank"
    try:
        return f"Inspector: {json.dumps(analyze_collectives([folder]).as_record())}"
    except InspectorFileError as error:
        raise RuntimeError(f"Inspector: {error}") from error


def described(found: dict[str, Any]) -> str:
    left, again = found["left_after_seconds"], found["first_step_after_seconds"]
    process = (
        f"the rank that stayed left its gang after {left} s and went on in the same process"
        if left is not None
        else "the rank that stayed did not leave its gang and was ended: another process took its place"
    )
    state = "the same state" if found["same_state"] else "another state"
    return (
        f"{found['backend']}: {process}; the new rank got {state}, {found['megabytes']} MiB; steps lost: "
        f"{found['steps_lost']}; first step of the next launch {again} s after the loss"
    )


def peer_memory(seconds_max: float) -> Found:
    """The state of two ranks in the memory of two nodes."""
    _need_torch()
    if shutil.which("munged") is None:
        raise NotPossibleError("keepers know each other by MUNGE, and it is not installed: make setup")
    size = ("--megabytes", str(STATE_MEGABYTES))
    found = json.loads(output_of("tests.hardware.peer_on_cuda", size, seconds_max))
    state = "the same state" if found["same_state"] else "another state"
    lines = [
        f"a save of {found['megabytes']} MiB from the GPU of each of two ranks holds them up for "
        f"{found['blocked_seconds']:.3f} s, the first one for {found['first_blocked_seconds']:.3f} s; a plain copy to "
        f"the host takes {found['copy_seconds']:.3f} s, torch.save to {tempfile.gettempdir()} "
        f"{found['torch_save_seconds']:.3f} s",
        f"after the loss of a node both have {state}, by step {found['start'][0]}, within "
        f"{found['restored_seconds']:.3f} s",
    ]
    return lines, found


def footprint(seconds_max: float) -> Found:
    read = read_real(seconds_max)
    if read.error or not read.gpus:
        raise NotPossibleError(f"NVML cannot be used: {read.error or 'it lists no GPU'}")
    found = json.loads(output_of("tests.hardware.footprint", (), seconds_max))
    cpu, memory = found["cpu_percent"], found["memory_mebibytes"]
    return [f"agent and its NVML process: {cpu:.2f} % of a core, {memory:.0f} MiB, one report a second"], found


def _need_torch() -> None:
    code = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotPossibleError("PyTorch is not installed: make setup")
    if done.stdout.strip() != "True":
        raise NotPossibleError("PyTorch finds no GPU that it can use")
