"""`deploy/prometheus` and `deploy/grafana` with a real Prometheus and a real Alertmanager."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine, insert, update

from tests import REPOSITORY
from tests import builders as b
from tests.recover.rehearsal import Rehearsal, refuse
from tests.testbed.prometheus import CLIENT, Prometheus, Receiver, alertmanager, prometheus, wait_for
from tests.tokens import add_tokens, bearer, secret
from understudy_agent.documents import document
from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.api.exported import METRIC_GROUPS
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.cli.main import root
from understudy_controlplane.config.current import ConfigFile
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.holder import Leading
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.need import NeedKind
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.live.meters import Meters
from understudy_controlplane.store import tables
from understudy_controlplane.store.database_lock import Alone
from understudy_controlplane.store.tokens import NewToken, TokenStore
from understudy_wire.hardware import Gpu, Port
from understudy_wire.launcher import LauncherPhase, LauncherState
from understudy_wire.ranks import RankWindow, Training

pytestmark = pytest.mark.integration  # starts Prometheus and Alertmanager

RULES = REPOSITORY / "deploy/prometheus/rules.yml"
DASHBOARDS = sorted((REPOSITORY / "deploy/grafana").glob("*.json"))
DAY = 86_400.0

VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$job_id": "1", "$node": ".+"}


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[str]:
    return re.findall(r"alert: (\w+)", RULES.read_text())


def test_promtool_accepts_the_rules_and_their_tests_which_leave_out_no_alert() -> None:
    promtool("check", "rules", RULES.name)
    promtool("test", "rules", "tests.yml")
    tested = (RULES.parent / "tests.yml").read_text()
    assert [name for name in alerts() if f"alertname: {name}\n" not in tested] == []


def test_each_alert_has_a_runbook_with_what_failed_why_and_what_to_do() -> None:
    sections = re.split(r"^## ", (REPOSITORY / "docs/runbooks.md").read_text(), flags=re.MULTILINE)
    books = {section.partition("\n")[0]: section for section in sections[1:]}
    assert list(books) == alerts()
    for name, book in books.items():
        assert all(part in book for part in ("**What failed.**", "**Why.**", "**What to do.**", "```")), name
    links = re.findall(r"runbook_url: .*docs/runbooks\.md#(\w+)", RULES.read_text())
    assert links == [name.lower() for name in alerts()]


def test_each_kind_of_need_is_explained_below_its_alert() -> None:
    for kind in NeedKind:
        text = document("runbooks", kind.value)
        assert text.startswith(f"### {kind.value}\n"), kind
        assert len(text.split()) > 6, kind


def commands() -> list[str]:
    return re.findall(
        r"^(?:ssh \w+ )?understudy (.+?)(?: \|.*)?$", (REPOSITORY / "docs/runbooks.md").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("line", sorted({line for line in commands() if line.split()[0] not in ("agent", "version")}))
def test_a_command_of_the_runbooks_is_one_that_there_is(line: str) -> None:
    program: click.Command | None = root
    words = shlex.split(line)
    while isinstance(program, click.Group):
        program = program.get_command(click.Context(program), words.pop(0))
    assert program is not None, line
    program.make_context(line, words)  # raises UsageError


def named(text: str) -> set[str]:
    """Metrics that an expression names, and those of Prometheus itself."""
    return set(re.findall(r"\b(?:understudy_\w+|up|scrape_\w+)\b", re.sub(r'"[^"]*"', "", text)))


def defined() -> set[str]:
    found = {metric.full_name for group in METRIC_GROUPS.values() for metric in group}
    for meter in Meters().described:
        parts = ("_bucket", "_sum", "_count") if meter.kind == "histogram" else ("",)
        found |= {meter.name + part for part in parts}
    return found


def queries(dashboard: Path) -> dict[str, set[str]]:
    """And the labels that a panel, or a list to choose from, shows of each answer."""
    board = json.loads(dashboard.read_text())
    asked = {
        target["expr"]: set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
        for panel in board["panels"]
        for target in panel["targets"]
    }
    lists = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return asked | {query: {label} for one in lists for query, label in re.findall(r"label_values\((.*), (\w+)\)", one)}


def test_dashboards_and_rules_name_metrics_that_are_defined() -> None:
    assert len(DASHBOARDS) == 5
    assert {name for name in all_named() if not name.startswith(("up", "scrape_"))} - defined() == set()


# -- one control plane, one Prometheus, one Alertmanager -------------------------------------------------------------


@contextmanager
def serving(app: FastAPI, listening: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_for(lambda: server.started, "the control plane serves")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def make_certificate(file: Path, days: int) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "/dev/null"]
    command = ["openssl", "req", "-x509", *key, "-subj", "/CN=head1", "-days", str(days), "-out", str(file)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def whole_gpu() -> Gpu:
    """GPU with all that NVML can report."""
    numbers: dict[str, Any] = {one.name: 0 for one in msgspec.structs.fields(Gpu) if one.default is None}
    return b.gpu(0, **numbers)


class Leads(Alone):
    """It leads, and another one stands by."""

    def __init__(self) -> None:
        self.seen_seconds_ago = 0.0

    def leading(self) -> Leading:
        now = time.time()
        return Leading("head1:7117", 7, now, now, {"head2:7117": now - self.seen_seconds_ago})


class OfTwo(Rehearsal):
    def _compose(self) -> ControlPlane:
        self.lead = Leads()
        outside = Outside(self.line, self._probe, self.clock, sleep=self._sleep, lead=self.lead)
        return compose(self._config, outside)


def a_fleet(folder: Path) -> OfTwo:
    """A gang makes steps; n8 has never had an agent; n7 was quarantined three times, some days ago."""
    make_certificate(folder / "cert.pem", 100)
    rehearsal = OfTwo(folder)
    rehearsal.silent.add("n8")
    url, key = folder / "url", folder / "webhook.key"
    for file, text in ((url, "http://127.0.0.1:1/away"), (key, "k" * 32)):
        file.write_text(text)
        file.chmod(0o600)
    rehearsal.set_config(
        server={"tls_certificate": folder / "cert.pem", "tls_key": folder / "key.pem"},
        notify={"receivers": {"pager": {"kind": "webhook", "url_file": url, "secret_file": key}}},
    )
    engine, now = rehearsal.engine, rehearsal.fake.now
    add_tokens(engine, ["n1"])
    with engine.begin() as connection:
        connection.execute(update(tables.node).where(tables.node.c.name == "n8").values(agent_seen_at=None))
    quarantined(engine, "n7", [now - days * DAY for days in (2, 3)])
    rehearsal.gpus = {"n1": [whole_gpu()]}
    rehearsal.restart_control_plane()
    rehearsal.run(2)
    return rehearsal


def quarantined(engine: Engine, node: str, times: list[float]) -> None:
    row = {"key": "k", "table_row": 10, "rule": "xid.79", "action": "quarantine", "because": "rule", "reason": ""}
    rows = [row | {"subject": node, "evidence": {}, "at": at} for at in times]
    with engine.begin() as connection:
        connection.execute(insert(tables.decision), rows)


def report_more(rehearsal: Rehearsal) -> None:
    """Steps of a rank, a fabric port, and something that this release does not know."""
    job = next(job for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    seen = Training(14, 2.5, 0.5, 1000.0, 6e9)
    window = RankWindow(job.job_id, 0, 0, 1, 0, job.user_id, "", 5, [0.1] * 10, [0.1] * 10, training=seen)
    telemetry = rehearsal.control_plane.telemetry
    gpus, ports = [b.gpu(0, name="NVIDIA H100 80GB HBM3")], [Port("mlx5_0", 1)]
    report = b.report("n2", boot_id="boot of n2", sent_at=rehearsal.fake.now, ranks=[window], ports=ports, gpus=gpus)
    telemetry.receive(report, rehearsal.clock.now())
    telemetry.unknown.note(["field Report.new"])
    rehearsal.control_plane.loop.tick()


def note_launcher(rehearsal: Rehearsal) -> None:
    job = next(job for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    state = LauncherState(job.job_id, job.restart_count, 0, LauncherPhase.RUNNING, job.nodes)
    rehearsal.control_plane.launchers.note(Gang(state, job.nodes[0]))


def impatient(rules: str) -> str:
    """The same rules without their patience, and with disks that count as nearly full."""
    for pattern, instead in ((r"for: \w+", "for: 0s"), (r"\[1[05]m\]", "[15s]"), (r"< 1e9\b", "< 1e18")):
        rules, count = re.subn(pattern, instead, rules)
        assert count, pattern
    return rules


def one_that_waits_for_approval(folder: Path) -> Rehearsal:
    folder.mkdir()
    rehearsal = Rehearsal(folder)
    rehearsal.restart_control_plane("approve")
    add_tokens(rehearsal.engine)
    rehearsal.run(2)
    return rehearsal


def configuration(folder: Path, targets: str, manager: str) -> str:
    """Configuration of `scrape.yml`, with its addresses and intervals changed."""
    (folder / "understudy").mkdir()
    (folder / "token").write_text(secret(Role.METRICS))
    shutil.copy(REPOSITORY / "tests/data/certificates.pem", folder / "ca.pem")
    sample = (RULES.parent / "scrape.yml").read_text()
    for before, after in (
        ("scheme: https", "scheme: http"),
        ("/etc/prometheus/understudy.token", str(folder / "token")),
        ("/etc/prometheus/understudy-ca.pem", str(folder / "ca.pem")),
        ("scrape_interval: 15s", "scrape_interval: 500ms"),
        ("scrape_timeout: 10s", "scrape_timeout: 500ms"),
        ('"head1:7117"', targets),
    ):
        assert before in sample, before
        sample = sample.replace(before, after)
    managers = f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{manager}']}}]}}]}}\n"
    return "global: {evaluation_interval: 500ms}\n" + managers + sample


@pytest.mark.long
def test_each_alert_fires_on_its_fault_and_dashboards_find_what_they_ask_for(tmp_path: Path) -> None:
    rehearsal, other = a_fleet(tmp_path), one_that_waits_for_approval(tmp_path / "other")
    listening, others = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    target, second = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listening, others))
    with alertmanager(tmp_path) as (manager, receiver), serving(other.control_plane.app, others):
        text = configuration(tmp_path, f'"{target}", "{second}"', manager)
        (tmp_path / "understudy/rules.yml").write_text(impatient(RULES.read_text()))
        with prometheus(tmp_path, text) as asked:
            with serving(rehearsal.control_plane.app, listening):
                wait_for(lambda: bool(asked.query("understudy_nodes")), "Prometheus has scraped")
                report_more(rehearsal)
                wait_for(lambda: bool(asked.query("understudy_job_step")), "it has scraped the steps")
                found = answered(asked)
                lint(CLIENT.get(f"http://{target}/metrics", headers=bearer(Role.METRICS)).text)
                fire(rehearsal, target, receiver, tmp_path)
                other.fail("n3")
                other.run(2)
                expect(receiver, "UnderstudyApprovalWaits")
                assert all_named() - asked.names() == set()
                found |= answered(asked)
                assert {query for board in DASHBOARDS for query in queries(board)} - found == set()
            expect(receiver, "UnderstudyControlPlaneDown")
    assert set(receiver.fired) == set(alerts())
    assert "pool" in receiver.fired["UnderstudyRecoveryFailed"]["summary"]
    assert "n7" in receiver.fired["UnderstudyNodeFlapping"]["summary"]


def lint(text: str) -> None:
    """Names, units and help texts as Prometheus wants them."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def all_named() -> set[str]:
    texts = [query for dashboard in DASHBOARDS for query in queries(dashboard)]
    return {name for text in (*texts, *re.findall(r"expr: (.+)", RULES.read_text())) for name in named(text)}


def answered(asked: Prometheus) -> set[str]:
    """Queries of the dashboards that find something, with the labels that are shown of it."""
    found = set[str]()
    for dashboard in DASHBOARDS:
        for query, labels in queries(dashboard).items():
            answer = asked.query(reduce(with_variable, VARIABLES, query))
            assert all(labels <= one["metric"].keys() for one in answer), (query, labels, answer)
            found |= {query} if answer else set()
    return found


def with_variable(query: str, name: str) -> str:
    return query.replace(f'="{name}"', f'=~"{VARIABLES[name]}"').replace(name, VARIABLES[name])


def expect(receiver: Receiver, *names: str) -> None:
    wait_for(lambda: set(names) <= receiver.fired.keys(), f"{names}; there are {sorted(receiver.fired)}", 20)


def fire(rehearsal: OfTwo, target: str, receiver: Receiver, folder: Path) -> None:
    stores, now = rehearsal.control_plane.stores, rehearsal.clock.now
    expect(receiver, "UnderstudyAgentsNeverHeard", "UnderstudyDiskFullSoon")
    receiver.fired.pop("UnderstudyControlPlaneDown", None)  # a busy machine may let one scrape time out
    assert len(receiver.fired) == 2, f"nothing else has happened yet: {sorted(receiver.fired)}"
    rehearsal.lead.seen_seconds_ago = 60.0
    rehearsal.run(1)
    expect(receiver, "UnderstudyNoStandby")
    make_certificate(folder / "cert.pem", 9)
    store = TokenStore(rehearsal.engine)
    store.add([NewToken(digest_of("x"), Role.VIEWER, "grafana", "", now(), "a test", time.time() + 9 * DAY)])
    store.note_use(next(one.id for one in store.all() if one.label == "grafana"), now())
    for _ in range(8):
        refused = CLIENT.post(
            f"http://{target}/v1/reports",
            content=msgspec.json.encode(b.report("n1", cluster="elsewhere")),
            headers=bearer(Role.NODE, "n1"),
        )
        assert refused.status_code == 400
    stores.tickets.open_ticket("n2-1", "n2", {}, now() - 4 * DAY)
    rehearsal.line.before = refuse("create_reservation")
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended, 400)
    rehearsal.line.before = lambda _: None
    notify_in_vain(rehearsal)
    rehearsal.run(1)
    expect(receiver, "UnderstudyNotificationsFail")
    expect(receiver, "UnderstudyCertificateEnds", "UnderstudyReportsRefused", "UnderstudyTicketOld")
    expect(receiver, "UnderstudyRecoveryFailed")
    rehearsal.fail("n7")
    rehearsal.run(5)
    for node in ("n6", "n1", "n2"):
        rehearsal.fail(node)
    rehearsal.run(10)
    expect(receiver, "UnderstudyBreakerOpen", "UnderstudySparesShort", "UnderstudyNodeFlapping")
    expect(receiver, "UnderstudyPersonNeededNow", "UnderstudyPersonNeeded")
    stores.requests.ask(Verb.PAUSE, FLEET, "maintenance", "an operator", now())
    rehearsal.silent.add("n5")
    note_launcher(rehearsal)
    rehearsal.control_plane.current.file = ConfigFile(folder / "none.toml", read_again=True)
    rehearsal.run(60)
    expect(
        receiver, "UnderstudyPausedLong", "UnderstudyAgentsSilent", "UnderstudyTokenEnds", "UnderstudyConfigNotInForce"
    )
    stores.requests.ask(Verb.RELEASE, "n3", "its incident ends", "an operator", now())
    rehearsal.run(5)
    rehearsal.clock.set_by(10.0, with_slurm=True)
    rehearsal.run(1)
    expect(receiver, "UnderstudyClockSet")
    rehearsal.line.before = unreadable
    rehearsal.run(5)
    expect(receiver, "UnderstudySlurmUnreadable")
    rehearsal.fake.advance(60)  # the loop stands still
    expect(receiver, "UnderstudyLoopStale")


def notify_in_vain(rehearsal: Rehearsal) -> None:
    """Messages about the failure, to a receiver that is away."""
    control_plane, counted = rehearsal.control_plane, {"receiver": "pager", "outcome": "failed"}
    metrics = control_plane.loop.pulse.meters.registry
    tries = 0.0
    while tries < 3:
        rehearsal.run(20)
        control_plane.notifier.look()
        time.sleep(0.1)  # that scrapes see it grow
        tries = metrics.get_sample_value("understudy_notifications_total", counted) or 0.0


def unreadable(name: str) -> None:
    refuse("nodes", "jobs", "reservations")(name)
