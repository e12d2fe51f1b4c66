"""Processes of control planes on one PostgreSQL: one leads, the other stands by."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, inspect, text

from tests import PYTHON_PATH, REPOSITORY
from tests.testbed.configuration import free_ports
from tests.testbed.prometheus import CLIENT
from tests.testbed.serve import PARAMETERS_FILE
from tests.testbed.serve_newer import REVISION
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_controlplane.store.holder import who_leads

pytestmark = pytest.mark.integration


class Side:
    def __init__(self, folder: Path, database: str, port: int, program: str = "serve_virtual") -> None:
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir()
        config, self._log = folder / "controlplane.toml", folder / "log"
        (folder / PARAMETERS_FILE).write_text("{}")
        config.write_text(f'cluster = "testbed"\n[server]\nport = {port}\ndatabase = "{database}"\n')
        self._command = [sys.executable, "-m", f"tests.testbed.{program}", "--config", str(config)]
        self.start()

    def start(self) -> None:
        with self._log.open("w") as log:
            environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
            self.process = subprocess.Popen(self._command, stderr=log, env=environment, cwd=REPOSITORY)

    @property
    def log(self) -> str:
        return self.show_log()

    def show_log(self) -> str:
        return self._log.read_text()

    def leads(self) -> bool:
        try:
            return CLIENT.get(f"{self.url}/healthz", timeout=1).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def stands_by(self) -> bool:
        return "stands_by" in self.log

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def sides(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """The first one leads."""
    ports = free_ports(2)
    first = Side(tmp_path / "a", postgres_url, ports[0])
    try:
        wait_until(first.leads, first.show_log)
        second = Side(tmp_path / "b", postgres_url, ports[1])
        try:
            wait_until(second.stands_by, second.show_log)
            yield first, second
        finally:
            second.end()
    finally:
        first.end()


def test_a_standby_answers_nothing_and_leads_after_the_leader_was_killed(sides: tuple[Side, Side]) -> None:
    first, second = sides
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{second.url}/healthz", trust_env=False)
    begun = time.monotonic()
    first.process.kill()
    wait_until(second.leads, second.show_log)
    print(f"takeover after SIGKILL: {time.monotonic() - begun:.2f} s")


def test_a_leader_that_was_frozen_ends_when_it_goes_on_and_stands_by_when_started_again(
    sides: tuple[Side, Side],
) -> None:
    first, second = sides
    begun = time.monotonic()
    first.process.send_signal(signal.SIGSTOP)
    wait_until(second.leads, second.show_log)
    print(f"takeover after SIGSTOP: {time.monotonic() - begun:.2f} s")
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(PATIENCE_SECONDS) == 1, first.log  # systemd starts it again (Restart=on-failure)
    assert "another control plane has taken the lead" in first.log
    first.start()
    wait_until(first.stands_by, first.show_log)
    assert second.leads()


def test_a_planned_stop_passes_the_lead_on_and_a_standby_ends_at_once(sides: tuple[Side, Side]) -> None:
    first, second = sides
    begun = time.monotonic()
    first.process.terminate()
    wait_until(second.leads, second.show_log)
    print(f"takeover after SIGTERM: {time.monotonic() - begun:.2f} s")
    assert "waits_seconds=0.0" in second.log
    assert first.process.wait(PATIENCE_SECONDS) == 0, first.log
    first.start()
    wait_until(first.stands_by, first.show_log)
    first.process.terminate()
    assert first.process.wait(PATIENCE_SECONDS) == 0, first.log


@pytest.mark.long
def test_releases_are_upgraded_one_after_the_other_and_the_older_one_can_take_back(
    postgres_url: str, tmp_path: Path
) -> None:
    """The newer one adds a column when it leads; the older one then works on that schema, and leaves it so."""
    ports = free_ports(2)
    older, newer = Side(tmp_path / "a", postgres_url, ports[0]), None
    try:
        wait_until(older.leads, older.show_log)
        newer = Side(tmp_path / "b", postgres_url, ports[1], "serve_newer")
        wait_until(newer.stands_by, newer.show_log)
        assert revision(postgres_url) == ("0100", False), "a standby upgrades nothing"
        for leader, other in ((older, newer), (newer, older), (older, newer)):
            leader.process.terminate()
            wait_until(other.leads, other.show_log)
            assert leader.process.wait(PATIENCE_SECONDS) == 0, leader.log
            assert revision(postgres_url) == (REVISION, True)
            leader.start()
            wait_until(leader.stands_by, leader.show_log)
            assert "install that one here" not in leader.log
            wait_until(lambda: "(unable" not in who_leads(postgres_url)[0], leader.show_log)
        newer.process.kill()
        wait_until(older.leads, older.show_log)
    finally:
        older.end()
        if newer is not None:
            newer.end()


def revision(url: str) -> tuple[str, bool]:
    """The schema has this revision, and the column of the newer release or not."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
            return found, "added" in {column["name"] for column in inspect(connection).get_columns("holder")}
    finally:
        engine.dispose()
