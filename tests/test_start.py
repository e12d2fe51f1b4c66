"""The start of the control plane, and what it reports to systemd."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.api.tls import CertificateFiles
from understudy_controlplane.config import ConfigError, Server
from understudy_controlplane.heartbeat import Heartbeat
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.serve import check_slurm, collect_rarely, listen, log_start
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.protocol import SlurmUnavailable
from understudy_wire.systemd import ServiceManager


class OtherCluster(VirtualSlurm):
    def cluster_name(self) -> str:
        return "production"


class SilentSlurm(VirtualSlurm):
    def cluster_name(self) -> str:
        raise SlurmUnavailable("slurmctld does not answer")


def test_the_control_plane_of_another_cluster_does_not_start() -> None:
    with pytest.raises(ConfigError, match="this host's Slurm is the cluster 'production', not 'testbed'"):
        check_slurm(b.config(), OtherCluster(["n1"]))


@pytest.mark.integration
def test_without_slurms_commands_it_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"install Slurm's client commands or set slurm\.scontrol"):
        check_slurm(b.config(), CommandLineGateway("/nowhere/scontrol"))


def test_while_slurm_does_not_answer_it_starts_and_waits() -> None:
    check_slurm(b.config(), SilentSlurm(["n1"]))


@pytest.mark.parametrize(
    ("host", "has_certificate", "warned"),
    [("127.0.0.1", False, False), ("198.18.0.1", False, True), ("198.18.0.1", True, False)],
)
def test_a_control_plane_that_others_reach_without_tls_warns(host: str, has_certificate: bool, warned: bool) -> None:
    certificate = CertificateFiles(Path("c"), Path("k")) if has_certificate else None
    with capture_logs() as lines:
        log_start(b.config(server={"host": host}), certificate)
    assert ("requests_not_encrypted" in [one["event"] for one in lines]) is warned


def test_a_port_that_is_taken_is_named_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"cannot listen on 127\.0\.0\.1 port {port}: Address already in use; `ss "
        ):
            listen(Server(port=port))


def test_an_address_of_another_host_is_named_with_a_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot listen on 192\.0\.2\.1 port 0: .*; set server\.host to an address of"
    ):
        listen(Server(host="192.0.2.1", port=0))


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """Returns what the service has sent since the last call."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)

        def received() -> list[str]:
            found = []
            while True:
                try:
                    found.append(receiver.recv(4096).decode())
                except BlockingIOError:
                    return found

        yield received


def test_the_control_plane_is_ready_after_a_tick_that_has_read_slurm(
    tmp_path: Path, systemd: Callable[[], list[str]]
) -> None:
    pulse = Pulse(turns=1)
    pulse.slurm.error = "no route\nto slurmctld"
    heartbeat = Heartbeat(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}), pulse, "observe")
    asyncio.run(heartbeat.beat())
    waiting = "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=Slurm cannot be read: no route to slurmctld"
    assert systemd() == [waiting]
    pulse.ticks_total = 1  # with what the database knows
    asyncio.run(heartbeat.beat())
    assert systemd() == [], "no progress, no message"
    pulse.slurm.at, pulse.slurm.error, pulse.turns = 100.0, "", 2
    asyncio.run(heartbeat.beat())
    assert systemd() == ["READY=1\nSTATUS=mode observe", "WATCHDOG=1\nSTATUS=mode observe"]


def test_systemd_shows_that_nothing_may_be_changed(tmp_path: Path, systemd: Callable[[], list[str]]) -> None:
    pulse = Pulse(turns=1, ticks_total=1, objection="another control plane leads")
    pulse.slurm.at = 100.0
    heartbeat = Heartbeat(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}), pulse, "act")
    asyncio.run(heartbeat.beat())
    assert systemd()[0] == "READY=1\nSTATUS=changes nothing in Slurm: another control plane leads"


def test_a_loop_that_hangs_sends_no_sign_of_life(tmp_path: Path, systemd: Callable[[], list[str]]) -> None:
    pulse = Pulse(turns=1, ticks_total=1)
    pulse.slurm.at = 100.0
    heartbeat = Heartbeat(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}), pulse, "act")
    for _ in range(3):
        asyncio.run(heartbeat.beat())
    assert systemd() == ["READY=1\nSTATUS=mode act", "WATCHDOG=1\nSTATUS=mode act"]


def test_without_systemd_nothing_is_sent() -> None:
    ServiceManager({}).ready("started")
    ServiceManager({"NOTIFY_SOCKET": "/nowhere"}).stopping()


def test_what_requests_leave_in_cycles_is_bounded_before_all_values_are_searched() -> None:
    before, searched = gc.get_threshold(), gc.get_stats()[2]["collections"]
    most = 0
    try:
        collect_rarely()
        objects = len(gc.get_objects())
        for number in range(350_000):
            refused: list[object] = []
            refused.append(refused)
            if number % 20_000 == 0:
                most = max(most, len(gc.get_objects()) - objects)
    finally:
        gc.set_threshold(*before)
    assert 50_000 < most < 110_000, "a young search begins at 100,000 values"
    assert gc.get_stats()[2]["collections"] == searched


def test_a_tick_is_not_searched_for_cycles() -> None:
    """Values of a tick over 12,500 nodes live until the next one, which frees them."""
    before = gc.get_threshold()
    try:
        collect_rarely()
        kept: list[list[object]] = []
        gc.collect()
        searched = gc.get_stats()[0]["collections"]
        for _ in range(20):
            kept = [[] for _ in range(45_000)]
        assert len(kept) == 45_000
        assert gc.get_stats()[0]["collections"] - searched <= 1
    finally:
        gc.set_threshold(*before)
