"""What `/metrics` shows, what it costs, and that it asks no database."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, event

from tests import REPOSITORY
from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.api.exported import METRIC_GROUPS, source
from understudy_controlplane.api.exported.control_plane import CONTROL_PLANE, ends_at
from understudy_controlplane.api.exported.source import Source
from understudy_controlplane.api.metrics import MetricsPage
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.stage_summary import StageSummary
from understudy_controlplane.live.meters import ZERO_SECONDS, Meters
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.telemetry import Telemetry
from understudy_wire.hardware import Gpu, GpuStatus, Port
from understudy_wire.stages import StageName, StageStatus

LABELS = {
    "action", "because", "cause", "database", "driver_version", "gpu", "gpu_model", "job_id", "kind", "label", "le",
    "managed", "mode", "model", "node", "outcome", "partition", "partitions", "pci_bus_id", "phase", "python", "role",
    "route", "rule", "service", "signal", "stage", "state", "status", "subject", "user", "uuid", "version", "what",
    "xid",
}  # fmt: skip
"""No reason texts, no names of jobs."""


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A gang lost n3 to an Xid 79 and is moved."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("metrics"))
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.run(1)
    return rehearsal


@contextmanager
def statements(*engines: Engine) -> Iterator[list[str]]:
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(statement)

    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    yield found
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def values(text: str) -> dict[tuple[str, ...], float]:
    """Name and values of the labels → value."""
    return {(s.name, *s.labels.values()): s.value for family in families(text) for s in family.samples}


@pytest.mark.integration
def test_a_scrape_after_a_recovery_shows_it_and_asks_no_database(rehearsal: Rehearsal) -> None:
    control_plane = rehearsal.control_plane
    with statements(control_plane.engine, control_plane.reads.engine) as asked:
        text = MetricsPage(control_plane.reads).text().decode()
    assert asked == []
    shown = values(text)
    assert shown["understudy_nodes", "quarantined"] == 1
    assert shown["understudy_recoveries", "pool"] == 0
    assert shown["understudy_recoveries_ended_total", "pool", "succeeded"] == 1
    assert shown["understudy_recoveries_ended_total", "pool", "failed"] == 0, "there before the first"
    assert shown["understudy_xid_events_total", "n3", "79"] == 0, "a series begins at zero"
    assert shown["understudy_requests_refused_total", "/v1/launchers", "403"] == 0
    assert shown["understudy_connections_refused_total", "address"] == 0
    assert shown["understudy_decisions_total", "quarantine", "rule"] == 1
    assert shown["understudy_incidents_opened_total", "hardware_fault"] == 1
    assert shown["understudy_incidents_open", "node"] == 1
    assert shown["understudy_recovery_phase_seconds_count", "pool", "drained"] == 1
    assert 0 < shown["understudy_recovery_seconds_sum", "pool"] < 60
    assert shown["understudy_node_out_of_service_seconds", "n3", "quarantined", "xid.79"] > 0
    assert shown["understudy_node_quarantines_last_week", "n3"] == 1
    assert shown["understudy_tick_seconds_count",] == shown["understudy_loop_ticks_total",] > 10
    assert shown["understudy_slurm_read_seconds_count",] > 0
    assert shown["understudy_node_seconds_total", "out"] > 0
    assert shown["understudy_job_restarts", "1"] == 1


@pytest.mark.integration
def test_every_metric_is_read_by_prometheus_with_the_prefix_and_with_labels_of_a_closed_set(
    rehearsal: Rehearsal,
) -> None:
    found = families(MetricsPage(rehearsal.control_plane.reads).text().decode())
    names = [family.name for family in found]
    assert len(names) == len(set(names))
    assert all(name.startswith("understudy_") for name in names)
    assert {label for family in found for s in family.samples for label in s.labels} <= LABELS
    assert [family.name for family in found if not family.documentation] == []


@pytest.mark.integration
def test_counters_begin_at_zero_with_the_process_and_count_nothing_twice(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.restart_control_plane()
    rehearsal.run(2)
    shown = values(MetricsPage(rehearsal.control_plane.reads).text().decode())
    assert shown["understudy_recoveries_ended_total", "pool", "succeeded"] == 0
    assert shown["understudy_recovery_seconds_count", "quarantine"] == 0
    assert shown["understudy_recovery_phase_seconds_count", "pool", "running"] == 0
    assert ("understudy_xid_events_total", "n3", "79") not in shown
    assert shown["understudy_incidents_opened_total", "hardware_fault"] == 0
    rehearsal.fail("n5", 48)
    rehearsal.run(2)
    shown = values(MetricsPage(rehearsal.control_plane.reads).text().decode())
    assert shown["understudy_xid_events_total", "n5", "48"] == 0


@pytest.mark.integration
def test_open_tickets_are_counted_with_the_age_of_the_oldest(rehearsal: Rehearsal) -> None:
    tickets, now = rehearsal.control_plane.stores.tickets, rehearsal.clock.now()
    tickets.open_ticket("n1-1", "n1", {}, now - 100)
    tickets.open_ticket("n2-1", "n2", {}, now - 900, closed=True)
    rehearsal.run(6)
    shown = values(MetricsPage(rehearsal.control_plane.reads).text().decode())
    assert shown["understudy_tickets_open",] == 1
    assert 100 < shown["understudy_ticket_age_seconds",] < 120


@pytest.mark.integration
def test_the_text_is_made_once_for_scrapes_that_come_together(rehearsal: Rehearsal) -> None:
    page = MetricsPage(rehearsal.control_plane.reads)
    assert page.text() is page.text()


def shown_of(
    *nodes: NodeView, jobs: tuple[Job, ...] = (), config: Config | None = None, pulse: Pulse | None = None
) -> dict[tuple[str, ...], float]:
    source = Source(b.snapshot(*nodes, jobs=jobs), config or b.config(), pulse or Pulse(), Telemetry(), b.NOW)
    return values(
        "".join(piece for group in METRIC_GROUPS.values() for metric in group for piece in metric.text(source))
    )


def test_a_gpu_is_shown_with_what_dcgm_exporter_shows_of_it() -> None:
    hot = b.gpu(
        0, temperature_celsius=84, power_watts=690.5, sm_clock_mhz=1200, remapped_rows_pending=True, name="H100"
    )
    shown = shown_of(b.node("n1", gpus=(hot, b.gpu(1, GpuStatus.LOST))))
    assert shown["understudy_gpu_temperature_celsius", "n1", "0"] == 84
    assert shown["understudy_gpu_power_watts", "n1", "0"] == 690.5
    assert shown["understudy_gpu_remapped_rows_pending", "n1", "0"] == 1
    assert shown["understudy_gpu_info", "n1", "0", "GPU-0", "0000:01:00.0", "H100", ""] == 1
    assert ("understudy_gpu_temperature_celsius", "n1", "1") not in shown, "NVML did not report it"
    assert (shown["understudy_gpus", "ok"], shown["understudy_gpus", "lost"]) == (1, 1)
    assert (shown["understudy_node_gpus", "n1"], shown["understudy_node_gpus_well", "n1"]) == (2, 0)
    assert shown["understudy_node_gpu_temperature_max_celsius", "n1"] == 84


def test_in_a_fleet_with_too_many_gpus_only_those_that_are_not_well_have_series() -> None:
    nodes = [b.node(f"n{n}", gpus=(b.gpu(0), b.gpu(1, recovery_action=int(n == 2)))) for n in range(1, 4)]
    assert len([name for name, *_ in shown_of(*nodes) if name == "understudy_gpu_ok"]) == 6
    few = b.config(limits={"gpus_in_metrics_max": 5})
    assert [key for key in shown_of(*nodes, config=few) if key[0] == "understudy_gpu_ok"] == [
        ("understudy_gpu_ok", "n2", "1")
    ]


def test_the_process_is_shown_without_proc_stat_which_the_service_does_not_see() -> None:
    shown = shown_of()
    assert shown["understudy_process_cpu_seconds_total",] > 0
    assert shown["understudy_process_resident_memory_bytes",] > 10_000_000
    assert 0 < shown["understudy_process_open_fds",] < shown["understudy_process_max_fds",]
    assert b.NOW < shown["understudy_process_start_time_seconds",] <= time.time()


def test_only_the_largest_managed_jobs_have_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "JOBS_MAX", 2)
    jobs = tuple(b.job(job_id=n, nodes=[f"n{i}" for i in range(n)], managed=n != 5) for n in (1, 2, 3, 5))
    shown = shown_of(jobs=jobs)
    assert {key[1] for key in shown if key[0] == "understudy_job_nodes"} == {"2", "3"}
    assert (shown["understudy_jobs_running", "yes"], shown["understudy_jobs_running", "no"]) == (3, 1)


def test_nodes_that_were_never_heard_are_not_those_that_fell_silent() -> None:
    never = b.node("n1", heard_at=None, record=b.record("n1"))
    silent = b.node("n2", heard_at=b.NOW - 1000)
    port = Port("mlx5_0", 1, was_active=True, down_seconds=5.0)
    shown = shown_of(never, silent, b.node("n3", ports=(port,)))
    assert (shown["understudy_nodes_never_heard",], shown["understudy_nodes_silent",]) == (1, 1)
    assert ("understudy_agent_report_age_seconds", "n1") not in shown
    assert shown["understudy_agent_report_age_seconds", "n2"] == 1000
    assert shown["understudy_node_ports_down", "n3"] == 1


def test_stages_of_validations_are_shown_by_their_last_results_with_the_time_that_they_took() -> None:
    stages = {
        (StageName.GPU, StageStatus.PASSED): StageSummary(30, 1800.0),
        (StageName.GPU, StageStatus.FAILED): StageSummary(2, 56.0),
    }
    shown = shown_of(pulse=Pulse(stages=stages))
    assert shown["understudy_stage_nodes", "gpu", "passed"] == 30
    assert shown["understudy_stage_nodes", "gpu", "failed"] == 2
    assert shown["understudy_stage_seconds", "gpu"] == 58.0


def test_labels_are_written_as_prometheus_reads_them() -> None:
    odd = 'a"b\\c\nd'
    shown = shown_of(b.node("n1", gpus=(Gpu(0, GpuStatus.OK, name=odd),)))
    assert ("understudy_node_info", "n1", "train", odd, "") in shown


def test_a_node_that_is_unknown_is_in_service_and_one_on_hold_is_not() -> None:
    shown = shown_of(b.node("n1", NodeState.UNKNOWN), b.node("n2", NodeState.OPERATOR_HOLD))
    out = [key[1:] for key in shown if key[0] == "understudy_node_out_of_service_seconds"]
    assert out == [("n2", "operator_hold", "")]


def test_codes_without_a_row_in_the_policy_share_a_series() -> None:
    meters = Meters()
    meters.note_kernel_events([b.xid_event("n1", code) for code in (79, 1000001, 1000002)], b.NOW)
    meters.note_kernel_events([], b.NOW + ZERO_SECONDS)
    assert xids(meters) == {"79": 1, "other": 2}


def xids(meters: Meters) -> dict[str, float]:
    return {
        sample.labels["xid"]: sample.value
        for family in meters.registry.collect()
        if family.name == "understudy_xid_events"
        for sample in family.samples
    }


def test_the_first_event_of_a_series_is_an_increase_for_prometheus() -> None:
    """Prometheus sees no increase if a series begins with 1."""
    meters, shown = Meters(), []
    events = {5.0: [b.xid_event("n1", 79)], 20.0: [b.xid_event("n1", 79)], 90.0: [b.xid_event("n1", 79)]}
    for after in (5.0, 20.0, 35.0, 50.0, 65.0, 90.0):
        meters.note_kernel_events(events.get(after, []), b.NOW + after)
        shown.append(xids(meters)["79"])
    assert shown == [0, 0, 0, 0, 2, 3]
    meters.note_kernel_events([b.xid_event("n2", 31)], b.NOW)
    meters.note_kernel_events([], b.NOW - 3600.0)
    assert xids(meters)["31"] == 1, "a clock that is set back holds nothing"


@pytest.mark.integration
def test_a_scraper_that_reads_gzip_gets_a_tenth_of_the_bytes(rehearsal: Rehearsal) -> None:
    add_tokens(rehearsal.control_plane.engine)
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.METRICS))
    plain = client.get("/metrics", headers={"Accept-Encoding": "identity"})
    zipped = client.get("/metrics", headers={"Accept-Encoding": "gzip;q=0.5, identity"})
    assert "content-encoding" not in plain.headers
    assert (zipped.headers["content-encoding"], zipped.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert families(zipped.text)
    assert int(zipped.headers["content-length"]) < len(plain.content) / 5


def test_the_time_in_service_has_no_jumps() -> None:
    meters = Meters()
    nodes = (b.node("n1"), b.node("n2"), b.node("n3", NodeState.QUARANTINED))
    snapshot = replace(b.snapshot(), nodes={node.name: node for node in nodes})
    for at in (0.0, 1.0, 2.0, 5000.0, 4000.0, 4001.0):
        meters.note_snapshot(replace(snapshot, now=b.NOW + at))

    def seconds(service: str) -> float | None:
        return meters.registry.get_sample_value("understudy_node_seconds_total", {"service": service})

    assert (seconds("in"), seconds("out")) == (6.0, 3.0)


def test_the_end_of_a_certificate_is_the_first_of_its_chain(tmp_path: Path) -> None:
    chain = REPOSITORY / "tests/data/certificates.pem"
    assert ends_at(chain) == ssl.cert_time_to_seconds("Nov 20 01:48:24 2036 GMT")
    of_far_end = tmp_path / "one.pem"  # from 2050 on the field has another form
    of_far_end.write_text(chain.read_text().partition("-----END CERTIFICATE-----\n")[0] + "-----END CERTIFICATE-----\n")
    assert ends_at(of_far_end) == ssl.cert_time_to_seconds("Oct  1 01:48:25 2059 GMT")
    assert ends_at(tmp_path / "none.pem") is None
    of_far_end.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    assert ends_at(of_far_end) is None


def test_the_free_space_is_that_of_the_database_file(tmp_path: Path) -> None:
    (tmp_path / "u.db").write_bytes(b"x" * 4096)
    config = b.config(server={"database": f"sqlite:///{tmp_path}/u.db"})
    source = Source(b.snapshot(), config, Pulse(), Telemetry(), b.NOW)
    shown = values("".join(piece for metric in CONTROL_PLANE for piece in metric.text(source)))
    assert shown["understudy_database_bytes",] == 4096
    assert shown["understudy_database_free_bytes",] > 0
    assert ("understudy_certificate_end_timestamp_seconds",) not in shown
