"""A reload of the agent: what comes into force, what needs a restart, and a file that cannot be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests import PYTHON_PATH
from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config
from tests.testbed.prometheus import wait_for
from understudy_agent.config import Config
from understudy_agent.reload import RELOADED, reloaded, settings

BEFORE = Config(cluster="testcluster", control_plane_urls=("http://head1:7117",))


def test_each_setting_either_comes_into_force_or_is_named() -> None:
    """Each once with another value."""
    names = dict(settings(BEFORE))
    assert len(names) > 18
    for name, value in names.items():
        new = changed(name, value)
        found = reloaded(BEFORE, new)
        if name in RELOADED:
            assert (found.config, found.changed, found.waiting) == (new, (name,), ())
        else:
            assert (found.config, found.changed, found.waiting) == (BEFORE, (), (name,))
    assert set(RELOADED) <= names.keys()


def changed(name: str, value: object) -> Config:
    other: object = Path("/elsewhere")
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int | float):
        other = value + 1
    elif isinstance(value, tuple):
        other = (*value, "http://head2:7117")
    elif isinstance(value, str):
        other = "another"
    section, _, key = name.rpartition(".")
    if not section:
        return msgspec.structs.replace(BEFORE, **{name: other})
    return msgspec.structs.replace(
        BEFORE, **{section: msgspec.structs.replace(getattr(BEFORE, section), **{key: other})}
    )


@pytest.mark.integration
def test_a_running_agent_goes_to_another_control_plane_and_names_what_waits(tmp_path: Path) -> None:
    with closing_all(FakeControlPlane(), FakeControlPlane()) as (first, second):
        file, log = tmp_path / "agent.toml", tmp_path / "log"
        write(file, tmp_path, first)
        command = [sys.executable, "-m", "understudy_agent", "--config", str(file)]
        with log.open("wb") as output:
            agent = subprocess.Popen(command, stderr=output, env=os.environ | {"PYTHONPATH": PYTHON_PATH})
        try:
            wait_for(lambda: bool(first.reports), "the agent reports")
            file.write_text("cluster = 7")
            agent.send_signal(signal.SIGHUP)
            wait_for(lambda: "configuration_not_reloaded" in log.read_text(), "the file is refused")
            write(file, tmp_path, second, 'run_directory = "/elsewhere"\n')
            agent.send_signal(signal.SIGHUP)
            wait_for(lambda: bool(second.reports), "it reports to the other one")
            assert agent.poll() is None
            assert "configuration_reloaded changed=control_plane_urls\n" in log.read_text()
            assert "configuration_needs_restart settings=run_directory" in log.read_text()
        finally:
            agent.terminate()
            assert agent.wait(20) == 0


@contextmanager
def closing_all(*planes: FakeControlPlane) -> Iterator[tuple[FakeControlPlane, ...]]:
    try:
        yield planes
    finally:
        for one in planes:
            one.stop()


def write(file: Path, folder: Path, to: FakeControlPlane, more: str = "") -> None:
    config = agent_config(folder, to.url)
    given = {name: getattr(config, name) for name in ("token_file", "boot_id_file", "kernel_log", "socket")}
    if not more:
        given["run_directory"] = config.run_directory
    lines = [f'{name} = "{path}"\n' for name, path in given.items()]
    lines += [more, f'cluster = "testcluster"\nnode = "n1"\ncontrol_plane_urls = ["{to.url}"]\n']
    lines += [f"report_interval_seconds = {config.report_interval_seconds}\n"]
    file.write_text("".join([*lines, "[nvml]\nenabled = false\n[host]\nenabled = false\n"]))
