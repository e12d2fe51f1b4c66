"""Two control planes that lead on two databases, as after a second installation, and agents that know both.

Control planes, agents and PostgreSQL are the real ones. Slurm is the virtual one, which keeps a list of all changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.running_agent import agent_config, running_agent, write_xid
from tests.bench.ha import Side, SlurmHost
from tests.testbed.postgres import Postgres
from tests.testbed.prometheus import CLIENT
from tests.tokens import bearer, secret, with_tokens
from tests.waiting import wait_until
from understudy_agent.config import Config
from understudy_agent.uplink import LOOK_SECONDS
from understudy_controlplane.decide.leadership import WORDS_SECONDS
from understudy_controlplane.fleet.identity import Role

pytestmark = [pytest.mark.integration, pytest.mark.patient, pytest.mark.long]

NODES = ("n1", "n2", "n3", "n4")
START_SECONDS_MAX = 180.0
LEARNT_SECONDS_MAX = 4 * LOOK_SECONDS
FORGOTTEN_SECONDS_MAX = 4 * WORDS_SECONDS


@pytest.fixture
def started(postgres: Postgres, tmp_path: Path) -> Iterator[tuple[Side, Side, SlurmHost]]:
    with ExitStack() as open_ones:
        host = open_ones.enter_context(closing(SlurmHost(tmp_path, NODES)))
        databases = [with_tokens(postgres.new_database(), NODES) for _ in "ab"]
        sides = [
            Side(tmp_path / name, database, postgres.sockets, host.address, 0.0)
            for name, database in zip("ab", databases, strict=True)
        ]
        for one in sides:
            open_ones.enter_context(closing(one))
        for one in sides:
            wait_until(one.is_ready, one.log.read_text, START_SECONDS_MAX)
        yield sides[0], sides[1], host


def agent(folder: Path, node: str, *urls: str) -> Config:
    (folder / node).mkdir()
    config = agent_config(folder / node, *urls, interval_seconds=1.0)
    (folder / node / "token").write_text(secret(Role.NODE, node) + "\n")
    (folder / node / "boot_id").write_text(f"boot-of-{node}\n")
    return msgspec.structs.replace(config, cluster="testbed", node=node)


def ask(side: Side, path: str) -> Any:
    return CLIENT.get(f"{side.url}{path}", headers=bearer(Role.ADMIN)).json()


def stops_for(side: Side, other: Side) -> bool:
    """It says in its status that it changes nothing, and why. Its circuit breaker is open, which notifies a person."""
    status = ask(side, "/v1/status")
    words = f"the control plane at {other.url} also leads here, with a database of its own"
    of_control_plane = [one["why"] for one in status["needs"] if one["kind"] == "control_plane"]
    return not side.is_ready() and any(words in one for one in of_control_plane) and words in status["breaker"]


@pytest.mark.timeout(900)
def test_each_of_two_learns_of_the_other_and_changes_nothing_until_a_person_has_ended_one(
    started: tuple[Side, Side, SlurmHost], tmp_path: Path
) -> None:
    a, b, host = started
    configs = [
        agent(tmp_path, node, *((a.url, b.url) if seat % 2 else (b.url, a.url))) for seat, node in enumerate(NODES)
    ]
    with ExitStack() as agents:
        for config in configs:
            agents.enter_context(running_agent(config))
        wait_until(lambda: stops_for(a, b) and stops_for(b, a), lambda: log_of(a, b), LEARNT_SECONDS_MAX)
        write_xid(configs[3], 1)  # its agent follows a
        wait_until(lambda: "n4" in subjects_of_incidents(a), lambda: log_of(a))
        assert (a.process.poll(), b.process.poll(), host.changes) == (None, None, [])

        b.process.terminate()
        b.process.wait(START_SECONDS_MAX)
        write_xid(configs[0], 1)  # its agent followed b
        wait_until(a.is_ready, lambda: log_of(a), FORGOTTEN_SECONDS_MAX)
        wait_until(lambda: "n1" in subjects_of_incidents(a), lambda: log_of(a))
        assert ask(a, "/v1/status")["breaker"], "a person has to close it"
        assert host.changes == []
        CLIENT.post(f"{a.url}/v1/breaker/reset", json={"reason": "b was stopped"}, headers=bearer(Role.ADMIN))
        wait_until(lambda: host.drained("n1") and host.drained("n4"), lambda: log_of(a))
    assert {side for _, side, _ in host.changes} == {"a"}


def subjects_of_incidents(side: Side) -> list[str]:
    return [one["subject"] for one in ask(side, "/v1/incidents")["items"]]


def log_of(*sides: Side) -> str:
    return "\n".join(one.log.read_text()[-3000:] for one in sides)
