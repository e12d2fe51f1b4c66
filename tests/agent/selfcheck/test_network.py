"""The network test finds a slow node, shows which end of a pair it is, and names no node where all are well."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.new_database import new_database
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.stages import StageStore
from understudy_selfcheck import network
from understudy_selfcheck.network import Host, NetworkError, Rates, join, judge, measure
from understudy_selfcheck.peer_jobs import TOKEN_VARIABLE, measured
from understudy_wire.stages import StageName, StageResult, StageStatus

pytestmark = pytest.mark.integration

TOKEN = "a secret of this test"
USUAL_BYTES_PER_SECOND = 200e6


class Line:
    """Time as the transport takes it: what this machine can do does not matter."""

    def __init__(self) -> None:
        self._now, self._lock = 0.0, threading.Lock()

    def now(self) -> float:
        return self._now

    def paced(self, bytes_per_second: float) -> Callable[[int], None]:
        def send(size: int) -> None:
            with self._lock:
                self._now += size / bytes_per_second

        return send


def run_mesh(names: list[str], slow: str = "", late: int = 0, address: str = "127.0.0.1") -> Rates:
    """All nodes as threads; `slow` sends half as many bytes in a second as the others. `late`: that never come."""
    line, host = Line(), Host(names[0], TOKEN)
    failures: list[BaseException] = []

    def speed(name: str) -> Callable[[int], None]:
        return line.paced(USUAL_BYTES_PER_SECOND / 2 if name == slow else USUAL_BYTES_PER_SECOND)

    def peer(name: str) -> None:
        try:
            mesh = join(name, (address, host.port), TOKEN, 20.0)
            mesh.pace = speed(name)
            measure(mesh, 0.05, line.now)
            mesh.close()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=peer, args=(name,), daemon=True) for name in names[1:]]
    for thread in threads:
        thread.start()
    mesh = host.gather(len(names) - 1 + late, 3.0 if late else 20.0, "tcp")
    mesh.pace = speed(names[0])
    rates = measure(mesh, 0.05, line.now)
    for thread in threads:
        thread.join(20.0)
    mesh.close()
    assert failures == []
    assert rates is not None
    return rates


def test_a_peer_whose_transport_is_throttled_to_half_is_named_and_the_node_under_test_is_not() -> None:
    rates = run_mesh(["n1", "n2", "n3"], slow="n2")
    verdict = judge(rates, 0.95, None)
    assert verdict.slow == ("n2",)
    assert verdict.value is not None
    assert verdict.value >= verdict.mark, "what it exchanges with the third peer counts"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_of_healthy_nodes_none_is_named(address: str) -> None:
    verdict = judge(run_mesh(["n1", "n2", "n3"], address=address), 0.95, None)
    assert (verdict.slow, verdict.why) == ((), "")


def test_a_node_under_test_that_is_throttled_to_half_fails() -> None:
    rates = run_mesh(["n1", "n2", "n3"], slow="n1")
    verdict = judge(rates, 0.95, None)
    assert verdict.slow == ("n1",)
    assert verdict.value is not None
    assert verdict.value < verdict.mark
    assert rates.ring > 0


@pytest.mark.parametrize("slow", ["", "n9"])
def test_a_node_is_compared_with_the_fleet_as_its_validations_stored_it(slow: str, tmp_path: Path) -> None:
    """Eight nodes have passed, each with two others. Then n9 has its turn, as fast as they are or half."""
    engine = open_database(new_database(tmp_path / "understudy.db"))
    stages = StageStore(engine)
    nodes = [f"n{i}" for i in range(1, 10)]
    with engine.begin() as connection:
        at = dict.fromkeys(("fault_at", "detected_at", "decided_at"), 1.0)
        connection.execute(insert(tables.recovery).values(kind="validate", plan={}, status="succeeded", **at))
    for i, name in enumerate(nodes[:8]):
        usual = stages.median(StageName.NETWORK, nodes)
        assert usual is None, "fewer than eight have no distribution"
        verdict = judge(run_mesh([name, *(nodes[(i + more) % 8] for more in (1, 2))]), 0.95, usual)
        assert verdict.value is not None
        passed = StageResult(StageName.NETWORK, StageStatus.PASSED, verdict.value, verdict.mark, 1.0)
        stages.record(1, name, [passed], 1.0)
    usual = stages.median(StageName.NETWORK, nodes)
    assert usual is not None
    assert usual == pytest.approx(USUAL_BYTES_PER_SECOND / 1e9, rel=0.2)
    verdict = judge(run_mesh(["n9", "n1", "n2"], slow=slow), 0.95, usual)
    engine.dispose()
    assert verdict.value is not None
    assert verdict.slow == ((slow,) if slow else ())
    assert (verdict.value < verdict.mark) is bool(slow)
    assert verdict.mark == pytest.approx(0.95 * usual, rel=0.2)


def test_a_peer_that_is_throttled_to_half_does_not_fail_the_node_beside_the_fleets_median() -> None:
    verdict = judge(run_mesh(["n1", "n2", "n3"], slow="n2"), 0.95, USUAL_BYTES_PER_SECOND / 1e9)
    assert verdict.slow == ("n2",)
    assert verdict.value is not None
    assert verdict.value >= verdict.mark


def test_peers_that_never_come_are_left_out_and_none_at_all_is_no_test() -> None:
    rates = run_mesh(["n1", "n2"], late=1)
    assert rates.names[0] == "n1"
    assert set(rates.names) == {"n1", "n2"}
    with pytest.raises(NetworkError, match="no peer was free"):
        Host("n1", TOKEN, "127.0.0.1").gather(2, 0.05)


def test_a_stranger_takes_no_part() -> None:
    host = Host("n1", TOKEN, "127.0.0.1")
    stranger = socket.create_connection(("127.0.0.1", host.port))
    stranger.sendall(b'{"token": "guessed", "name": "n2", "port": 1, "nccl": false}\n')
    with pytest.raises(NetworkError):
        host.gather(1, 0.5)
    assert stranger.recv(1) == b""
    stranger.close()


@pytest.mark.patient
def test_a_peer_joins_by_its_command_and_torch_carries_the_same_schedule() -> None:
    host = Host("n1", TOKEN)
    command = [
        sys.executable,
        "-m",
        "understudy_selfcheck",
        "--join",
        f"[::1]:{host.port}",
        "--seconds",
        "0.01",
    ]
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN, "SLURMD_NODENAME": "n2"}
    with subprocess.Popen(command, env=environment) as peer:
        rates = measured(host.gather(1, 60.0, "gloo"), 0.01)
        assert peer.wait(60) == 0
    assert rates is not None
    assert rates.names == ("n1", "n2")
    assert min(*rates.pairs.values(), rates.ring) > 0


# -- what follows from the rates ----------------------------------------------


def rates_of(speeds: dict[str, float]) -> Rates:
    """Rates of pairs: each is as fast as its slower end."""
    names = tuple(speeds)
    pairs = permutations(range(len(names)), 2)
    return Rates(names, {(one, other): min(speeds[names[one]], speeds[names[other]]) for one, other in pairs}, 1.0)


WELL = {"n1": 12.0, "n2": 12.1, "n3": 11.9, "n4": 12.0}


def test_where_all_are_well_none_is_named() -> None:
    verdict = judge(rates_of(WELL), 0.95, 12.0)
    assert (verdict.slow, verdict.why) == ((), "")
    assert verdict.value is not None
    assert verdict.value >= verdict.mark


@pytest.mark.parametrize("slow", ["n1", "n2", "n3", "n4"])
@pytest.mark.parametrize("usual", [None, 12.0])
def test_of_a_pair_the_bad_end_is_named_by_third_peers(slow: str, usual: float | None) -> None:
    verdict = judge(rates_of(WELL | {slow: 11.0}), 0.95, usual)
    assert verdict.slow == (slow,)
    assert verdict.value is not None
    assert (verdict.value < verdict.mark) is (slow == "n1")


def test_two_alone_show_that_something_is_slow_and_not_which() -> None:
    alone = rates_of({"n1": 6.0, "n2": 12.0})
    assert judge(alone, 0.95, None).slow == (), "nothing to compare with"
    verdict = judge(alone, 0.95, 12.0)
    assert (verdict.value, verdict.slow) == (None, ())
    assert "no third peer" in verdict.why


def test_a_group_that_is_slow_together_condemns_none() -> None:
    together = rates_of(dict.fromkeys(WELL, 6.0))
    verdict = judge(together, 0.95, 12.0)
    assert (verdict.value, verdict.slow) == (None, ())


def test_chunks_are_what_the_schedule_counts() -> None:
    assert network.CHUNK_BYTES % 4 == 0, "torch sends them as float32"
