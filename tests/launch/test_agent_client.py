"""The launcher's connection to its node's agent, with a socket in the agent's place."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.test_launchers import STATE
from understudy_agent import rank_messages
from understudy_launcher import messages
from understudy_launcher.agent_client import AgentLine
from understudy_wire import launcher as wire
from understudy_wire.values import PACKED_NODES_CHARACTERS_MAX


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "agent.sock"))
        listening.listen()
        listening.settimeout(20)
        yield listening


@pytest.fixture
def line(tmp_path: Path) -> AgentLine:
    opened = AgentLine(str(tmp_path / "agent.sock"), 7, 1)
    opened.report(STATE)
    return opened


def test_names_that_do_not_fit_into_a_line_are_not_sent_and_the_launcher_says_why(
    agent: socket.socket, line: AgentLine
) -> None:
    """The agent would refuse them each second."""
    chance = random.Random(1)  # noqa: S311 - names that cannot be packed
    names = tuple(f"{chance.getrandbits(128):032x}" for _ in range(4000))
    line.report({**STATE, "seats": names})
    assert line.turn() is None
    assert "the names of 4001 nodes do not fit into a message" in line.refused
    with agent.accept()[0] as connection:
        assert connection.recv(1) == b""
    assert messages.PACKED_CHARACTERS_MAX == PACKED_NODES_CHARACTERS_MAX


def test_how_a_gang_ended_waits_for_an_agent_that_is_being_restarted(agent: socket.socket, line: AgentLine) -> None:
    line.turn()
    connection, _ = agent.accept()
    connection.sendall(b'{"type": "answer"}\n')
    line.turn()
    connection.close()

    line.report({**STATE, "phase": "done"})
    with ThreadPoolExecutor() as threads:
        accepted = threads.submit(agent.accept)
        assert line.close()
        again, _ = accepted.result(20)
    with again, again.makefile("rb") as lines:
        assert b'"done"' in lines.readline()


def test_an_agent_that_stays_away_holds_the_end_up_for_seconds_and_one_that_never_was_there_not_at_all(
    agent: socket.socket, line: AgentLine
) -> None:
    line.turn()
    connection, _ = agent.accept()
    connection.sendall(b'{"type": "answer"}\n')
    line.turn()
    connection.close()
    agent.close()
    assert not line.close()
    never = AgentLine("/nowhere/agent.sock", 7, 1)
    never.report(STATE)
    assert never.close()


def test_no_permission_to_shrink_stands_while_the_control_plane_is_silent(
    agent: socket.socket, line: AgentLine
) -> None:
    """Spares may have come meanwhile."""
    line.turn()
    connection, _ = agent.accept()
    permitted = rank_messages.encode(wire.LauncherAnswer("a", wire.LauncherOrders({"n2": "Xid 79"}, may_shrink=True)))
    known = rank_messages.encode(wire.LauncherAnswer("a"))
    seen = []
    with connection:
        for message, silent in (
            (permitted, False),
            (rank_messages.encode(rank_messages.ControlPlaneSilent()), True),
            (known, False),
        ):
            connection.sendall(message)
            deadline = time.monotonic() + 20
            while (not line.has_orders or line.silent is not silent) and time.monotonic() < deadline:
                line.turn()
            seen.append((line.may_shrink, dict(line.poll())))
    line.turn()
    seen.append((line.may_shrink, dict(line.poll())))
    assert [allowed for allowed, _ in seen] == [True, False, True, False]
    assert all(bad == {"n2": "Xid 79"} for _, bad in seen), "its verdicts stand"
