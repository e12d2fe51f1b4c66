"""The load of the benchmark of reports: full reports of many nodes, as a script for wrk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.tokens import secret
from understudy_controlplane.fleet.identity import Role
from understudy_wire.hardware import Gpu, GpuStatus
from understudy_wire.messages import RELEASE, WIRE_VERSION, Report
from understudy_wire.ranks import RankWindow

NODES = 128
GPUS = 8
STEPS_PER_REPORT = 10
JOB_ID = 4242
CLUSTER = "bench"
FIRST_STEP_MARK, SEQUENCE_MARK, SENT_AT_MARK = 77_777_777, 77_777_778, 77_777_779
"""Stand in the template where the script puts the next step, the number of the report, and the time."""


def node_name(index: int) -> str:
    return f"n{index + 1:03d}"


def full_report(index: int) -> bytes:
    """8 GPUs and 8 ranks' windows: about 3 KB."""
    gpus = [
        Gpu(
            index=i,
            status=GpuStatus.OK,
            uuid=f"GPU-8f6f2d5c-0000-4000-8000-{index:06d}{i:06d}",
            bus_id=f"0000:{16 + i:02x}:00.0",
            serial=f"165{index:06d}{i:04d}",
            name="NVIDIA H100 80GB HBM3",
            temperature_celsius=61,
            power_watts=655.4,
            sm_clock_mhz=1980,
            sm_clock_max_mhz=1980,
            clock_event_reasons=0,
            utilization_percent=98,
            ecc_uncorrected=0,
            recovery_action=0,
        )
        for i in range(GPUS)
    ]
    times = [0.1 + 0.001 * (i % 3) for i in range(STEPS_PER_REPORT)]
    ranks = [
        RankWindow(JOB_ID, 0, index * GPUS + i, NODES * GPUS, i, 1000, "", FIRST_STEP_MARK, times, [])
        for i in range(GPUS)
    ]
    report = Report(
        WIRE_VERSION,
        CLUSTER,
        node_name(index),
        f"boot-{index}",
        SEQUENCE_MARK,
        0.0,
        SENT_AT_MARK,
        "570.124",
        gpus,
        ranks,
        release=RELEASE,
    )
    return msgspec.json.encode(report)


def exposition(number: int) -> bytes:
    """The values of a report for Prometheus; `number` makes those that change other ones."""
    gpus = (
        f'gpu_{name}{{gpu="{i}"}} {value}'
        for i in range(GPUS)
        for name, value in (
            ("temperature_celsius", 55 + (number + i) % 9),
            ("power_watts", 640 + (number * 7 + i) % 23 / 10),
            ("sm_clock_mhz", 1980 - 15 * (number % 3)),
            ("sm_clock_max_mhz", 1980),
            ("clock_event_reasons", 0),
            ("utilization_percent", 95 + number % 5),
            ("ecc_uncorrected", 0),
            ("recovery_action", 0),
            ("status", 0),
        )
    )
    steps = (
        f'step_seconds{{rank="{i}",place="{step}"}} {0.1 + 0.001 * ((number + i + step) % 7):.3f}'
        for i in range(GPUS)
        for step in range(STEPS_PER_REPORT)
    )
    return "\n".join((*gpus, *steps, "")).encode()


def write_script(path: Path) -> int:
    """A wrk script that posts reports of all nodes in turn, each with its token. Returns the size of a body."""
    bodies = [full_report(index) for index in range(NODES)]
    reports = ",\n".join(f"[==[{body.decode()}]==]" for body in bodies)
    tokens = ", ".join(f'"{secret(Role.NODE, node_name(index))}"' for index in range(NODES))
    path.write_text(
        f"""
local reports = {{ {reports} }}
local tokens = {{ {tokens} }}
local headers = {{}}
for i, token in ipairs(tokens) do
  headers[i] = {{ ["Authorization"] = "Bearer " .. token, ["Content-Type"] = "application/json" }}
end
local marks = {{ ["{FIRST_STEP_MARK}"] = "", ["{SEQUENCE_MARK}"] = "", ["{SENT_AT_MARK}"] = "" }}
local sent = 0
local first_round = os.time() * 1000 % 1000000000
function request()
  local node, round = sent % #reports + 1, first_round + math.floor(sent / #reports)
  sent = sent + 1
  marks["{FIRST_STEP_MARK}"] = tostring(round * {STEPS_PER_REPORT})
  marks["{SEQUENCE_MARK}"] = tostring(round)
  marks["{SENT_AT_MARK}"] = tostring(os.time())
  return wrk.format("POST", "/v1/reports", headers[node], (string.gsub(reports[node], "%d%d%d%d%d%d%d%d+", marks)))
end
"""
    )
    return len(bodies[0])
