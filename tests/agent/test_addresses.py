"""Addresses of both families, alone and with a port."""

from __future__ import annotations

import socket

import pytest

from tests import REPOSITORY
from understudy_wire.addresses import EVERY, bound, canonical, is_every, split_port, with_port


def reached_by(server: socket.socket, host: str) -> str:
    """The address that the server sees."""
    server.listen()
    with socket.create_connection((host, server.getsockname()[1]), timeout=5):
        accepted, (address, *_) = server.accept()
        accepted.close()
        return canonical(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_every_address_is_of_both_families(host: str) -> None:
    with bound(EVERY, 0) as server:
        assert reached_by(server, host) == host


def test_a_kernel_without_ipv6_listens_on_every_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bound(EVERY, 0) as server:
        assert is_every(server.getsockname()[0]) and ":" not in server.getsockname()[0]
        assert reached_by(server, "127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_one_address_is_that_one_alone(host: str) -> None:
    with bound(host, 0) as server:
        own = server.getsockname()[0]
        other = "::1" if own == "127.0.0.1" else "127.0.0.1"
        with pytest.raises(OSError, match="refused"):
            reached_by(server, other)


def test_an_address_has_one_spelling() -> None:
    found = [canonical(one) for one in ("::ffff:10.0.0.1", "FD00:0:0::1", "testclient")]
    assert found == ["10.0.0.1", "fd00::1", "testclient"]


def test_what_a_server_binds_to_be_reached_at_all_addresses() -> None:
    found = {one: is_every(one) for one in ("", EVERY, "0::0", "127.0.0.1", "::1", "localhost", "0")}
    assert [one for one, every in found.items() if every] == ["", EVERY, "0::0"]
    assert is_every("0" + ".0" * 3)


def test_a_taken_port_is_not_bound_twice() -> None:
    with bound(EVERY, 0) as taken, pytest.raises(OSError, match="in use"):
        taken.listen()
        bound("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("n1:7119", "n1", "7119"), ("10.0.0.1:1", "10.0.0.1", "1"), ("[fd00::1]:7119", "fd00::1", "7119")],
)
def test_host_and_port_are_written_and_read(text: str, host: str, port: str) -> None:
    assert split_port(text) == (host, port)
    assert with_port(host, int(port)) == text


def test_a_process_group_meets_at_an_ipv6_address() -> None:
    """PyTorch cannot read the first one of these."""
    wrong, right = (REPOSITORY / "tests/data/world/network/ipv6_init_methods.txt").read_text().split()
    assert f"tcp://{with_port('fd00::1', 29500)}" == right != wrong


def test_what_is_no_address_with_a_port_has_an_empty_host_or_port() -> None:
    assert split_port("n1") == ("", "n1")
    assert split_port("n1:") == ("n1", "")
