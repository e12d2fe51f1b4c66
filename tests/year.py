"""The database of a cluster after a year, as retention leaves it: every kind of row, in the numbers of a real cluster.

2,000 nodes of 8 GPUs run 200,000 jobs: 8 nodes and 64 ranks for 11 hours each, with a checkpoint every 30 minutes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests import REPOSITORY
from tests.new_database import new_database
from understudy_controlplane.config import Retention
from understudy_controlplane.fleet.finding import HardwareDetail
from understudy_controlplane.store import tables
from understudy_controlplane.store.shard_map import Shard, pack
from understudy_controlplane.xid_policy import Repair
from understudy_wire.stages import StageName

DAY = 86_400.0
NOW = 1_800_000_000.0
KEPT = Retention()
DAYS = 365
GANG = 8
"""Nodes of a job."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    nodes: int = 2_000
    jobs: int = 200_000
    ranks: int = 64
    checkpoints: int = 22  # of a job

    def scaled(self, share: float) -> Shape:
        return Shape(max(int(self.nodes * share), 2 * GANG), int(self.jobs * share), self.ranks, self.checkpoints)

    def jobs_of(self, days: float) -> range:
        """Those of the last days."""
        return range(self.jobs - int(self.jobs * min(days, DAYS) / DAYS) + 1, self.jobs + 1)

    def each(self, per_node_and_year: float, days: float = DAYS) -> Iterator[tuple[int, str, float]]:
        """Number, node and time of events, oldest first: this number of each node in a year."""
        count = int(self.nodes * per_node_and_year * min(days, DAYS) / DAYS)
        for number in range(count):
            yield number + 1, node_name(number * 7919 % self.nodes), NOW - days * DAY * (count - number) / (count + 1)


def node_name(number: int) -> str:
    return f"gpu-r{number // 16:03}-n{number % 16:02}"


def write_year(path: Path, shape: Shape) -> dict[str, tuple[int, int]]:
    """Makes the database; returns for each table its rows, and the bytes that they and their indexes take."""
    new_database(path)
    written: dict[str, tuple[int, int]] = {}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-400000"):
            connection.execute(f"PRAGMA {pragma}")
        for name, rows in kinds(shape).items():
            before = _bytes(connection)
            connection.execute("BEGIN")
            count = _insert(connection, name, rows)
            connection.execute("COMMIT")
            written[name] = (count, _bytes(connection) - before)
    return written


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[Row]) -> int:
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return 0
    columns = ", ".join(f'"{name}"' for name in first)
    query = f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(first))})"  # noqa: S608 - names of this file
    connection.execute(query, tuple(first.values()))
    before = connection.total_changes
    connection.executemany(query, (tuple(row.values()) for row in rows))
    return connection.total_changes - before + 1


def _bytes(connection: sqlite3.Connection) -> int:
    """Bytes in use: free pages do not count."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def kinds(shape: Shape) -> dict[str, Iterable[Row]]:
    """Table → its rows; what others refer to comes first."""
    return {
        tables.node.name: _nodes(shape),
        tables.token.name: _tokens(shape),
        tables.gpu_seen.name: _gpus(shape),
        tables.part_seen.name: _parts(shape),
        tables.job.name: _jobs(shape),
        tables.attempt.name: _attempts(shape),
        tables.launch_start.name: _launch_starts(shape),
        tables.launch_end.name: _launch_ends(shape),
        tables.launch_evidence.name: _evidence(shape),
        tables.rank_start.name: _rank_starts(shape),
        tables.gang_world.name: _worlds(shape),
        tables.first_step.name: _first_steps(shape),
        tables.checkpoint.name: _checkpoints(shape),
        tables.checkpoint_map.name: _maps(shape),
        tables.checkpoint_shard.name: _shards(shape),
        tables.restore_report.name: _restore_reports(shape),
        tables.anomaly.name: _anomalies(shape),
        tables.kernel_event.name: _kernel_events(shape),
        tables.hardware_event.name: _hardware_events(shape),
        tables.job_refusal.name: _refusals(shape),
        tables.maintenance.name: _maintenance(shape),
        tables.site_signal.name: _signals(shape),
        tables.incident.name: _incidents(shape),
        tables.incident_finding.name: _findings(shape),
        tables.recovery.name: _recoveries(shape),
        tables.recovery_step.name: _steps(shape),
        tables.stage_result.name: _stages(shape),
        tables.request.name: _requests(shape),
        tables.decision.name: _decisions(shape),
        tables.ticket.name: _tickets(shape),
        tables.notice.name: _notices(shape),
        tables.message.name: _messages(shape),
        tables.audit.name: _audit(shape),
    }


INCIDENTS_PER_NODE = 6.0
RECOVERIES_PER_NODE = 12.0
EVIDENCE = json.dumps(
    {"kernel_log": "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus", "silent_seconds": 31.5}
)
DETAIL = msgspec.json.encode(
    HardwareDetail(repair=Repair.REBOOT, part="0000:1b:00.0", gpu="0000:1b:00.0", is_event=True)
).decode()


def _seats(job: int, nodes: int) -> list[str]:
    return [node_name((job * GANG + seat) % nodes) for seat in range(GANG)]


def _begun(job: int, shape: Shape) -> float:
    return NOW - DAYS * DAY * (shape.jobs - job + 1) / shape.jobs


def _nodes(shape: Shape) -> Iterator[Row]:
    for number in range(shape.nodes):
        yield {
            "name": node_name(number),
            "state": "in_service",
            "since": NOW - number,
            "table_row": 0,
            "cleared_at": 0.0,
            "drain_reason": "",
            "agent_seen_at": NOW,
        }


def _tokens(shape: Shape) -> Iterator[Row]:
    for number in range(shape.nodes):
        yield {
            "digest": f"{number:064x}",
            "role": "node",
            "label": node_name(number),
            "node": node_name(number),
            "made_at": NOW - 1800,
            "made_by": "munge",
            "expires_at": NOW + 1800,
        }


def _gpus(shape: Shape) -> Iterator[Row]:
    for number in range(shape.nodes * 8):
        yield {
            "uuid": f"GPU-{number:08x}-8c1e-4f6d-9f2a-3b0c5d7e9a11",
            "node": node_name(number // 8),
            "serial": f"165{number:010}",
            "name": "NVIDIA H100 80GB HBM3",
            "bus_id": f"0000:{number % 8:02X}:00.0",
            "first_seen_at": NOW - DAYS * DAY,
            "last_seen_at": NOW - number % 3600,
            "board_part_number": "692-2G520-0200-000",
        }


PARTS = (*(("board", place) for place in ("system", "board", "chassis")), *(("card", f"mlx5_{i}") for i in range(8)))
PARTS += tuple(("module", f"eth{i}") for i in range(8))


def _parts(shape: Shape) -> Iterator[Row]:
    for number in range(shape.nodes):
        for place, (kind, name) in enumerate(PARTS):
            yield {
                "kind": kind,
                "identity": f"MT23{number:06}{place:02}X",
                "node": node_name(number),
                "place": name,
                "model": "MCX75310AAS-NEAT",
                "first_seen_at": NOW - DAYS * DAY,
                "last_seen_at": NOW - number % 3600,
            }


def _jobs(shape: Shape) -> Iterator[Row]:
    for job in range(1, shape.jobs + 1):
        runs = job > shape.jobs - shape.nodes // GANG
        yield {
            "cluster": "c",
            "job_id": job,
            "submit_at": int(_begun(job, shape)),
            "user": f"user{job % 200:03}",
            "user_id": 20_000 + job % 200,
            "name": f"train-llm-{job % 1000:04}",
            "account": f"group{job % 20:02}",
            "partition": "train",
            "managed": job % 10 > 0,
            "state": "RUNNING" if runs else "FAILED" if job % 20 == 0 else "COMPLETED",
            "restart_count": 0,
            "seen_at": NOW if runs else _begun(job, shape) + 40_000,
        }


def _attempts(shape: Shape) -> Iterator[Row]:
    for job in range(1, shape.jobs + 1):
        runs = job > shape.jobs - shape.nodes // GANG
        yield {
            "job": job,
            "restart_count": 0,
            "launch": 0,
            "nodes": json.dumps(_seats(job, shape.nodes)),
            "running_at": _begun(job, shape),
            "ended_at": None if runs else _begun(job, shape) + 40_000,
            "restore_step": 20_000,
            "restore_path": f"/scratch/project{job % 200:03}/run-{job:06}/checkpoints/step-00020000",
            "restore_at": _begun(job, shape),
            "last_step": 40_000,
            "last_step_at": _begun(job, shape) + 39_000,
            "code": f"commit {job:040x} files {job:016x}",
            "config": f"arguments {job:016x}",
            "data": "corpus-2026-11",
        }


def _launch_starts(shape: Shape) -> Iterator[Row]:
    for job in range(1, shape.jobs + 1, 2):
        yield {
            "job": job,
            "restart_count": 0,
            "launch": 0,
            "node": _seats(job, shape.nodes)[0],
            "seats": json.dumps(_seats(job, shape.nodes)),
            "spares": "[]",
            "lost": "[]",
            "at": _begun(job, shape),
            "received_at": _begun(job, shape),
        }


def _launch_ends(shape: Shape) -> Iterator[Row]:
    for job in range(1, shape.jobs + 1, 2):
        at = _begun(job, shape) + 39_000
        yield {
            "job": job,
            "restart_count": 0,
            "launch": 0,
            "table_row": "L90",
            "cause": "finished",
            "reason": "every rank has ended with status 0",
            "progressed": True,
            "counted": False,
            "failed_node": "",
            "blamed": "[]",
            "at": at,
            "received_at": at,
        }


def _evidence(shape: Shape) -> Iterator[Row]:
    """Evidence of one launch in ten."""
    for job in list(shape.jobs_of(KEPT.events_days - 1))[::20]:
        at = _begun(job, shape) + 38_000
        yield {
            "job": job,
            "restart_count": 0,
            "launch": 0,
            "kind": "hang",
            "summary": "rank 3 on gpu-r001-n03 did not enter collective 1234 (nccl:all_reduce) of group 0:default_pg",
            "text": "x" * 12_000,
            "at": at,
            "received_at": at,
        }


def _ranks(shape: Shape) -> Iterator[tuple[int, int, float]]:
    for job in shape.jobs_of(KEPT.job_details_days - 1):
        for rank in range(shape.ranks):
            yield job, rank, _begun(job, shape)


def _rank_starts(shape: Shape) -> Iterator[Row]:
    for job, rank, at in _ranks(shape):
        yield {
            "job": job,
            "restart_count": 0,
            "rank": rank,
            "world_size": shape.ranks,
            "node": node_name((job * GANG + rank // 8) % shape.nodes),
            "pid": 100_000 + rank,
            "started_at": at,
            "received_at": at + 1,
        }


def _worlds(shape: Shape) -> Iterator[Row]:
    for job in shape.jobs_of(KEPT.job_details_days - 1):
        yield {"job": job, "restart_count": 0, "launch": 0, "world_size": shape.ranks, "ranks": shape.ranks}


def _first_steps(shape: Shape) -> Iterator[Row]:
    for job, rank, at in _ranks(shape):
        yield {
            "job": job,
            "restart_count": 0,
            "rank": rank,
            "world_size": shape.ranks,
            "step": 20_000,
            "at": at + 60,
            "received_at": at + 61,
        }


def _path(job: int, number: int) -> str:
    return f"/scratch/project{job % 200:03}/run-{job:06}/checkpoints/step-{20_000 + number * 500:08}"


STAGED_DAYS = 2 / 24
"""Shards are packed within a minute, and their rows deleted within an hour."""


def _saved(shape: Shape) -> Iterator[tuple[int, int]]:
    """Job and number of each checkpoint: all of recent jobs, the last three of older ones."""
    recent = shape.jobs_of(KEPT.job_details_days - 1)
    for job in range(1, shape.jobs + 1):
        first = 0 if job in recent else shape.checkpoints - 3
        for number in range(first, shape.checkpoints):
            yield job, number


def _checkpoints(shape: Shape) -> Iterator[Row]:
    for identifier, (job, number) in enumerate(_saved(shape), 1):
        yield {
            "id": identifier,
            "job": job,
            "restart_count": 0,
            "launch": 0,
            "step": 20_000 + number * 500,
            "path": _path(job, number),
            "world_size": shape.ranks,
            "shards": shape.ranks,
            "size_bytes": shape.ranks * 2**31,
            "at": _begun(job, shape) + number * 1800,
            "packed": True,
        }


def _maps(shape: Shape) -> Iterator[Row]:
    for identifier, (job, number) in enumerate(_saved(shape), 1):
        at = _begun(job, shape) + number * 1800
        checksums = [
            f"xxh3:{hashlib.md5(b'%d %d' % (identifier, rank), usedforsecurity=False).hexdigest()}"
            for rank in range(shape.ranks)
        ]
        shards = [
            Shard(
                rank,
                node_name((job * GANG + rank // 8) % shape.nodes),
                f"__{rank}_0.distcp",
                2**31,
                checksums[rank],
                at,
                rank,
            )
            for rank in range(shape.ranks)
        ]
        yield {"checkpoint": identifier, "packed_through": 0, "shards": pack(shards)}


def _shards(shape: Shape) -> Iterator[Row]:
    for job in shape.jobs_of(STAGED_DAYS):
        for number in range(shape.checkpoints):
            for rank in range(shape.ranks):
                yield {
                    "job": job,
                    "restart_count": 0,
                    "step": 20_000 + number * 500,
                    "rank": rank,
                    "world_size": shape.ranks,
                    "node": node_name((job * GANG + rank // 8) % shape.nodes),
                    "path": _path(job, number),
                    "file": f"__{rank}_0.distcp",
                    "size_bytes": 2**31,
                    "checksum": f"xxh3:{job * 1000 + rank:032x}",
                    "at": NOW,
                    "received_at": NOW,
                }


def _restore_reports(shape: Shape) -> Iterator[Row]:
    """One rank looks whether the checkpoint is there."""
    for job in shape.jobs_of(KEPT.job_details_days - 1):
        at = _begun(job, shape)
        yield {
            "job": job,
            "restart_count": 0,
            "launch": 0,
            "rank": 0,
            "world_size": shape.ranks,
            "node": _seats(job, shape.nodes)[0],
            "step": 20_000,
            "path": _path(job, 0),
            "outcome": "seen",
            "error": "",
            "at": at,
            "received_at": at + 1,
        }


def _anomalies(shape: Shape) -> Iterator[Row]:
    for job in shape.jobs_of(KEPT.job_details_days - 1)[::10]:
        for rank in range(2):
            yield {
                "job": job,
                "restart_count": 0,
                "rank": rank,
                "world_size": shape.ranks,
                "node": node_name((job * GANG) % shape.nodes),
                "kind": "loss_nan" if job % 3 else "loss_jump",
                "step": 21_000,
                "until": -1,
                "value": "nan",
                "usual": 2.1,
                "at": _begun(job, shape),
                "received_at": _begun(job, shape),
            }


def _kernel_events(shape: Shape) -> Iterator[Row]:
    for number, node, at in shape.each(60, KEPT.events_days):
        yield {
            "node": node,
            "boot_id": "8a8e9c4e-2f0d-4b0e-9d53-0a64a1c7e2b1",
            "sequence": number,
            "at": at,
            "received_at": at,
            "xid": (13, 31, 43, 63, 74, 79, 94, None)[number % 8],
            "bus_id": "0000:1b:00.0",
            "text": f"NVRM: Xid (PCI:0000:1b:00): 79, pid={number}, name=python3, GPU has fallen off the bus.",
            "jobs": json.dumps([[number, int(at), "user017"]]),
            "driver_version": "550.54.15",
            "gpu_set": "a1b2c3d4e5f60718",
        }


def _hardware_events(shape: Shape) -> Iterator[Row]:
    for number, node, at in shape.each(100, KEPT.events_days):
        yield {
            "node": node,
            "boot_id": "8a8e9c4e-2f0d-4b0e-9d53-0a64a1c7e2b1",
            "at": at,
            "received_at": at,
            "kind": "port_down",
            "part": f"mlx5_{number % 8}/1",
            "seconds": 12.5,
            "text": "ACTIVE to DOWN",
            "driver_version": "550.54.15",
            "gpu_set": "a1b2c3d4e5f60718",
        }


def _refusals(shape: Shape) -> Iterator[Row]:
    for number, node, at in shape.each(10, KEPT.events_days):
        yield {
            "node": node,
            "job_id": number,
            "restart_count": 0,
            "at": at,
            "received_at": at,
            "reason": "understudy: xid.79: GPU 0000:1b:00.0 has fallen off the bus",
        }


def _maintenance(shape: Shape) -> Iterator[Row]:
    for _number, node, at in shape.each(0.1):
        nodes = [f"{node}-{i:02}" for i in range(16)]
        yield {
            "targets": json.dumps(["rack r17"]),
            "nodes": json.dumps(nodes),
            "reason": "new firmware",
            "by": "alice",
            "at": at,
            "until": at + 6 * 3600,
            "at_once": 4,
            "paused": False,
            "stages": json.dumps(dict.fromkeys(nodes, "done")),
            "closed_at": at + 4 * 3600,
        }


def _signals(shape: Shape) -> Iterator[Row]:
    for number, node, at in shape.each(2, KEPT.events_days):
        yield {
            "source": "alertmanager",
            "key": f"{number:016x}",
            "kind": "over_temperature",
            "targets": json.dumps([node, "rack r17"]),
            "summary": "InletTemperatureHigh: the inlet of the rack is at 38 degrees for more than ten minutes",
            "at": at,
            "until": at + 6 * 3600,
        }


def _incidents(shape: Shape) -> Iterator[Row]:
    for number, node, at in shape.each(INCIDENTS_PER_NODE):
        yield {
            "subject_kind": "node",
            "subject": node,
            "nodes": json.dumps([node]),
            "rule": "xid.79",
            "signal": "hardware_fault",
            "summary": f"Xid 79 on GPU 0000:1b:00.0: the GPU has fallen off the bus ({number})",
            "evidence": EVIDENCE,
            "detail": DETAIL,
            "fault_at": at,
            "opened_at": at,
            "closed_at": at + 7200 if at < NOW - 14_400 else None,
            "outcome": "passed its validation: returned to service",
        }


def _findings(shape: Shape) -> Iterator[Row]:
    for number, _node, at in shape.each(INCIDENTS_PER_NODE):
        for rule in ("xid.79", "xid.119", "agent.silent"):
            yield {
                "incident": number,
                "rule": rule,
                "signal": "recorded",
                "summary": "Xid 119 on GPU 0000:1b:00.0: the GPU's system processor does not answer",
                "evidence": EVIDENCE,
                "detail": DETAIL,
                "at": at,
            }


def _recoveries(shape: Shape) -> Iterator[Row]:
    plans = _plans()
    for number, _node, at in shape.each(RECOVERIES_PER_NODE):
        kind, plan = plans[number % len(plans)]
        job = number % shape.jobs + 1
        yield {
            "kind": kind,
            "job": job if kind == "pool" else None,
            "plan": plan,
            "status": "succeeded",
            "fault_at": at,
            "detected_at": at + 1,
            "decided_at": at + 1,
            "ended_at": at + 90,
            "outcome": "",
        }


def _plans() -> list[tuple[str, str]]:
    """Kinds of recoveries, and a plan of each."""
    stored = json.loads((REPOSITORY / "tests" / "data" / "plans.json").read_text())
    return [(one["kind"], json.dumps(one)) for one in stored if one["kind"] in ("pool", "repair", "validate", "return")]


def _steps(shape: Shape) -> Iterator[Row]:
    names = ("drain_nodes", "hold_seats", "take_spares", "bind_job", "requeue_job", "start_job", "await_first_step")
    for number, node, at in shape.each(RECOVERIES_PER_NODE):
        for position, name in enumerate(names):
            yield {
                "recovery": number,
                "position": position,
                "name": name,
                "status": "done",
                "attempts": 1,
                "intended_at": at + position,
                "done_at": at + position + 1,
                "detail": f"{node}: understudy: xid.79",
            }


def _stages(shape: Shape) -> Iterator[Row]:
    """Stages of one validation in twelve recoveries."""
    for number, node, at in shape.each(RECOVERIES_PER_NODE):
        if number % 12 == 0:
            for stage in StageName:
                yield {
                    "recovery": number,
                    "node": node,
                    "stage": stage.value,
                    "status": "passed",
                    "value": 153.2,
                    "pass_mark": 120.0,
                    "seconds": 10.1,
                    "why": "",
                    "at": at + 600,
                }


def _requests(shape: Shape) -> Iterator[Row]:
    for _number, node, at in shape.each(4):
        yield {
            "at": at,
            "verb": "hold",
            "reason": "cables are replaced in this rack today",
            "by": "alice",
            "subject": node,
            "answered_at": at + 1,
        }


def _decisions(shape: Shape) -> Iterator[Row]:
    """Decisions: of each incident four that act, and four to do nothing; of other nodes some to do nothing."""
    acts = (
        ("quarantine", "quarantined"),
        ("repair", "repairing"),
        ("validate", "validating"),
        ("return", "probation"),
    )
    for number, node, at in shape.each(INCIDENTS_PER_NODE):
        for action, state in acts:
            yield _decision(node, at, (action, "rule"), state, (number, number))
        for _ in acts if at > NOW - KEPT.events_days * DAY else ():
            yield _decision(node, at, ("nothing", "repair_budget"), None, (number, None))
    for number, node, at in shape.each(365, KEPT.idle_decisions_days):
        yield _decision(node, at, ("nothing", "rule_dry_run" if number % 2 else "fleet_budget"))


def _decision(
    node: str,
    at: float,
    what: tuple[str, str],
    to_state: str | None = None,
    of: tuple[int | None, int | None] = (None, None),
) -> Row:
    """`what`: action and because. `of`: incident and recovery."""
    action, because = what
    return {
        "at": at,
        "key": f"10|{action}|{because}|xid.79|8a8e9c4e-2f0d-4b0e-9d53-0a64a1c7e2b1|0000:1b:00.0",
        "table_row": 10,
        "rule": "xid.79",
        "subject": node,
        "action": action,
        "because": because,
        "reason": "Xid 79 on GPU 0000:1b:00.0: the GPU has fallen off the bus: the hardware reports that it fails",
        "from_state": "in_service" if to_state else None,
        "to_state": to_state,
        "evidence": EVIDENCE,
        "incident": of[0],
        "recovery": of[1],
    }


def _tickets(shape: Shape) -> Iterator[Row]:
    for number, node, at in shape.each(1):
        yield {
            "label": f"{node}-{number}",
            "node": node,
            "opened_at": at,
            "closed_at": at + 7200 if at < NOW - 14_400 else None,
            "body": json.dumps({"node": node, "history": [EVIDENCE] * 8}),
        }


def _notices(shape: Shape) -> Iterator[Row]:
    """Notices of each incident, and of each second one for the owner of its job."""
    for number, node, at in shape.each(INCIDENTS_PER_NODE * 1.5):
        yield {
            "source": "incident" if number % 3 else "move",
            "number": number - number // 3 if number % 3 else number // 3,
            "importance": "warning",
            "stage": "over",
            "title": f"node {node}: hardware fault",
            "text": "xid.79: Xid 79 on GPU 0000:1b:00.0: the GPU has fallen off the bus\nRecovery 7 succeeded",
            "about": json.dumps([node]),
            "at": at,
            "page": f"incidents/{number}",
            "user": "",
            "over_at": at + 7200,
            "needs": "",
        }


def _messages(shape: Shape) -> Iterator[Row]:
    """Messages to two receivers."""
    for number, node, at in shape.each(INCIDENTS_PER_NODE * 2):
        yield {
            "receiver": "oncall",
            "user": "",
            "notices": json.dumps([number]),
            "made_at": at,
            "due_at": at + 10,
            "title": f"Understudy mycluster: node {node}: hardware fault",
            "shown": f"{number} warning over",
            "importance": "warning",
            "revision": 3,
            "accepted": 3,
            "tries": 1,
            "accepted_at": at + 7200,
            "error": "",
            "closed": at < NOW - 7200,
        }


def _audit(shape: Shape) -> Iterator[Row]:
    for _number, node, at in shape.each(6):
        yield {
            "at": at,
            "who": "alice",
            "role": "operator",
            "address": "10.20.30.40",
            "action": "hold",
            "subject": f"node {node}",
            "reason": "cables are replaced in this rack today",
            "before": json.dumps({"state": "in_service"}),
            "after": json.dumps({"state": "held"}),
        }
