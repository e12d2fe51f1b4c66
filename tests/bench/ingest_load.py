"""The load of the ingest benchmark: full reports of many nodes, as a script for wrk."""

from __future__ import annotations

import time
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
FIRST_STEP_MARK = 77_777_777
"""Stands in the template where the script puts the number of the next step."""


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
        1,
        time.time(),
        time.time(),
        "570.124",
        gpus,
        ranks,
        release=RELEASE,
    )
    return msgspec.json.encode(report)


def write_script(path: Path, full: bool) -> int:
    """A wrk script that posts reports of all nodes in turn, each with its token, or nothing to /empty. Returns the size
    of a body.
    """
    bodies = [full_report(index) for index in range(NODES)]
    reports = ",\n".join(f"[==[{body.decode()}]==]" for body in bodies)
    tokens = ", ".join(f'"{secret(Role.NODE, node_name(index))}"' for index in range(NODES))
    path.write_text(
        f"""
local reports = {{ {reports} }}
local parts = {{}}
for i, body in ipairs(reports) do
  local pieces, from = {{}}, 1
  while true do
    local first, last = body:find("{FIRST_STEP_MARK}", from, true)
    if not first then break end
    pieces[#pieces + 1] = body:sub(from, first - 1)
    from = last + 1
  end
  pieces[#pieces + 1] = body:sub(from)
  parts[i] = pieces
end
local tokens = {{ {tokens} }}
local headers = {{}}
for i, token in ipairs(tokens) do
  headers[i] = {{ ["Authorization"] = "Bearer " .. token, ["Content-Type"] = "application/json" }}
end
local sent = 0
local first_round = os.time() * 1000 % 1000000000
function request()
  local full = {"true" if full else "false"}
  if not full then return wrk.format("POST", "/empty", headers[1], "") end
  local node, round = sent % #parts + 1, math.floor(sent / #parts)
  sent = sent + 1
  local step = tostring((first_round + round) * {STEPS_PER_REPORT})
  return wrk.format("POST", "/v1/reports", headers[node], table.concat(parts[node], step))
end
local refused = 0
function response(status) if status ~= 200 and status ~= 204 then refused = refused + 1 end end
"""
    )
    return len(bodies[0])
