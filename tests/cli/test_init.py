"""`understudy init`: what it writes, for whom, and that it overwrites nothing."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from understudy_agent.config import parse_config as parse_agent_config
from understudy_controlplane.cli.init import Site, create, listens_at, service_user
from understudy_controlplane.config import parse_config
from understudy_controlplane.own_certificate import make_certificate


def test_what_it_writes_is_valid_and_begins_in_mode_observe(tmp_path: Path) -> None:
    site = Site('a "cluster"', "head1", "0.0.0.0", 7118, True, tmp_path)  # noqa: S104 - read
    config = parse_config(site.control_plane("slurm"), "controlplane.toml")
    assert (config.cluster, config.mode.value, config.server.port) == ('a "cluster"', "observe", 7118)
    assert config.server.tls_key == tmp_path / "tls.key"
    assert config.validation.user == "slurm"  # who is not root submits no jobs of root
    assert config.server.host == "0.0.0.0"  # noqa: S104 - compared
    agent = parse_agent_config(site.agent(), "agent.toml", {})
    assert (agent.cluster, agent.control_plane_urls) == ('a "cluster"', ("https://head1:7118",))
    assert agent.ca_file == Path("/etc/understudy/ca.pem")


def test_a_control_plane_may_have_an_ipv6_address(tmp_path: Path) -> None:
    agent = parse_agent_config(Site("c", "fd00::1", "::", 7117, False, tmp_path).agent(), "agent.toml", {})
    assert agent.control_plane_urls == ("http://[fd00::1]:7117",)


@pytest.mark.parametrize(
    ("parameters", "address", "host"),
    [
        ("(null)", "head1", "0.0.0.0"),  # noqa: S104 - compared
        ("EnableIPv6,DisableIPv4", "head1", "::"),
        ("block_null_hash,EnableIPv6", "head1", "::"),
        ("(null)", "fd00::1", "::"),
    ],
)
def test_it_listens_by_ipv6_where_slurm_does(parameters: str, address: str, host: str) -> None:
    assert listens_at({"CommunicationParameters": parameters}, address) == host


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "controlplane.toml"
    create(file, "first", 0o640)
    create(file, "second", 0o644)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("first", 0o640)
    assert capsys.readouterr().out == f"written: {file}\nkept: {file}\n"


def test_the_service_runs_as_a_user_that_slurm_lets_change_nodes() -> None:
    assert service_user({"AccountingStorageType": "(null)", "SlurmUser": "slurm(64030)"}) == "slurm"
    assert (
        service_user({"AccountingStorageType": "accounting_storage/slurmdbd", "SlurmUser": "slurm(64030)"})
        == "understudy"
    )
    assert service_user(None) == "understudy"


@pytest.mark.integration
@pytest.mark.parametrize("host", ["head1", "192.0.2.7", "fd00::1"])
def test_its_certificate_is_valid_for_the_address_alone(tmp_path: Path, host: str) -> None:
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    make_certificate(host, certificate, key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=certificate)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
    assert handshake(server, trusting, host)
    assert not handshake(server, trusting, "head2")


def test_a_certificate_that_cannot_be_written_leaves_no_key(tmp_path: Path) -> None:
    key = tmp_path / "tls.key"
    with pytest.raises(OSError, match="No such file"):
        make_certificate("head1", tmp_path / "nowhere" / "tls.pem", key)
    assert not key.exists()


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname=name)
    other = server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return True
