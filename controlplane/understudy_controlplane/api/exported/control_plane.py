"""Metrics of the control plane itself and of its process."""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from cryptography import x509

from understudy_controlplane.api.exported.metric import Kind, Metric, Sample, labels_text
from understudy_controlplane.api.exported.source import Source, counted, one
from understudy_controlplane.config import Mode
from understudy_wire.messages import RELEASE

PROC = Path("/proc/self")

STARTED_AT = time.time()

SQLITE = "sqlite:///"


def _slurm_read_age(source: Source) -> float | None:
    return source.now - source.pulse.slurm.at if source.pulse.slurm.at is not None else None


def _wire_unknown(source: Source) -> Iterator[Sample]:
    for what, count in source.telemetry.unknown.totals().items():
        yield labels_text(what=what), float(count)


def _build(source: Source) -> Iterator[Sample]:
    database = source.config.server.database.partition(":")[0].partition("+")[0]
    yield labels_text(version=RELEASE, python=platform.python_version(), database=database), 1.0


def _database_file(source: Source) -> Path | None:
    url = source.config.server.database
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None


def _database_bytes(source: Source) -> float | None:
    file = _database_file(source)
    try:
        return file.stat().st_size if file is not None else None
    except OSError:
        return None  # the metric is absent: docs/metrics.md


def _database_free(source: Source) -> float | None:
    file = _database_file(source)
    try:
        found = os.statvfs(file.parent) if file is not None else None
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found is not None else None


def ends_at(file: Path) -> float | None:
    """The first end of all certificates in a PEM file, in seconds since the epoch; None: it cannot be read now."""
    try:
        return _ends_at(file, file.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None  # as between the replacement of its bytes; the server goes on with the certificate before


@lru_cache(maxsize=4)
def _ends_at(file: Path, _changed_at: int) -> float:
    return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(file.read_bytes()))


def _certificate_ends_at(source: Source) -> float | None:
    file = source.config.server.tls_certificate
    return ends_at(file) if file is not None else None


def _token_ends(source: Source) -> Iterator[Sample]:
    for (role, label), at in source.pulse.token_ends.items():
        yield labels_text(role=role, label=label), at


def _waiting(source: Source) -> Iterator[Sample]:
    for receiver, count in source.pulse.messages_waiting.items():
        yield labels_text(receiver=receiver), float(count)


def _counter(name: str, documentation: str, value: Callable[[Source], float]) -> Metric[Source]:
    return Metric(name, documentation, one(value), kind=Kind.COUNTER)


CONTROL_PLANE: tuple[Metric[Source], ...] = (
    Metric("build_info", "1; the release that runs.", _build, ("version", "python", "database")),
    Metric(
        "mode",
        "1 for the mode.",
        counted("mode", [mode.value for mode in Mode], lambda s: Counter([s.snapshot.mode])),
        ("mode",),
        "3",
    ),
    Metric(
        "paused", "1 while an operator has paused the control plane.", one(lambda s: bool(s.snapshot.operator.paused))
    ),
    Metric(
        "config_in_force",
        "0 where the configuration file cannot be used, or has changed settings that need a restart; else 1.",
        one(lambda s: not s.pulse.config_problems),
    ),
    Metric("loop_age_seconds", "Time since the last tick ended.", one(lambda s: s.now - s.pulse.last_tick_at)),
    Metric(
        "lead_age_seconds",
        "Time since this control plane took the lead. On PostgreSQL alone.",
        one(lambda s: s.now - s.pulse.leading.since if s.pulse.leading else None),
    ),
    Metric(
        "standbys",
        "Control planes that stand by. On PostgreSQL alone.",
        one(lambda s: len(s.pulse.leading.standbys) if s.pulse.leading else None),
    ),
    _counter("loop_ticks_total", "Ticks that ended.", lambda s: s.pulse.ticks_total),
    _counter(
        "loop_errors_total", "Ticks, detectors, recoveries and transitions that failed.", lambda s: s.pulse.errors_total
    ),
    _counter(
        "clock_jumps_total",
        "Times that the clock of the control plane's machine was set by two seconds or more.",
        lambda s: s.pulse.clock_jumps_total,
    ),
    Metric(
        "slurm_readable",
        "1 where the last reading of Slurm succeeded.",
        one(lambda s: s.pulse.slurm.at is not None and not s.pulse.slurm.error),
    ),
    Metric("slurm_read_age_seconds", "Time since Slurm was last read.", one(_slurm_read_age)),
    _counter("slurm_read_errors_total", "Readings of Slurm that failed.", lambda s: s.pulse.slurm.errors_total),
    _counter("reports_total", "Reports of agents that were accepted.", lambda s: s.telemetry.reports_total),
    Metric(
        "wire_unknown_total",
        "Fields, enum values and kinds of facts in agents' reports that this release does not know and ignored.",
        _wire_unknown,
        ("what",),
        "3 at most",
        Kind.COUNTER,
    ),
    _counter(
        "step_windows_dropped_total",
        "Step times of ranks that were rejected.",
        lambda s: s.telemetry.windows_dropped_total,
    ),
    _counter(
        "facts_dropped_total",
        "Facts of agents that were not believed, or that no database stores.",
        lambda s: s.telemetry.facts_dropped_total,
    ),
    Metric(
        "database_bytes", "Size of the database file; absent where the database is not SQLite.", one(_database_bytes)
    ),
    Metric(
        "database_free_bytes",
        "Free space of the file system of the database; absent where the database is not SQLite.",
        one(_database_free),
    ),
    Metric(
        "certificate_end_timestamp_seconds",
        "When the certificate ends, in seconds since the epoch; absent without TLS.",
        one(_certificate_ends_at),
    ),
    Metric(
        "token_end_timestamp_seconds",
        "When the last token of a person or program that is in use ends, in seconds since the epoch.",
        _token_ends,
        ("role", "label"),
        "people and programs",
    ),
    Metric(
        "notifications_waiting",
        "Messages that a receiver has not taken yet, also those that wait for others.",
        _waiting,
        ("receiver",),
        "receivers",
    ),
)


def _resident_bytes(_: Source) -> float:
    pages = PROC.joinpath("statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _open_files(_: Source) -> float:
    with os.scandir(PROC / "fd") as files:
        return sum(1 for _ in files)


# Not prometheus_client's collector: it needs /proc/stat, which the service does not see (ProcSubset=pid).
PROCESS: tuple[Metric[Source], ...] = (
    _counter("process_cpu_seconds_total", "Processor time of the process.", lambda _: time.process_time()),
    Metric("process_resident_memory_bytes", "Resident memory of the process.", one(_resident_bytes)),
    Metric("process_open_fds", "Open files of the process.", one(_open_files)),
    Metric(
        "process_max_fds",
        "Files that the process may open.",
        one(lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ),
    Metric("process_threads", "Threads of the process.", one(lambda _: threading.active_count())),
    Metric(
        "process_start_time_seconds",
        "When the process started, in seconds since the epoch.",
        one(lambda _: STARTED_AT),
    ),
)
