"""TLS by two lines: agents and commands trust the named authority alone, and a new certificate needs no restart."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_agent.config import Config as AgentConfig
from understudy_agent.config import ConfigError as AgentConfigError
from understudy_agent.config import Tls, tls_of
from understudy_agent.credentials import TokenFile
from understudy_agent.facts import FactQueue
from understudy_agent.uplink import Uplink
from understudy_client import Client, UnreachableError
from understudy_controlplane.api.connections import Connections
from understudy_controlplane.api.tls import CertificateError, CertificateFiles, TlsServer
from understudy_controlplane.config import ConfigError, Limits, parse_config
from understudy_wire.messages import WIRE_VERSION, Report

pytestmark = pytest.mark.integration  # runs openssl, and a server


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"11")]})
    await send({"type": "http.response.body", "body": b'{"facts":0}'})


def make_certificate(folder: Path) -> CertificateFiles:
    """Signed by itself, for 127.0.0.1."""
    folder.mkdir()
    files = CertificateFiles(folder / "cert.pem", folder / "key.pem")
    name = ["-subj", f"/CN={folder.name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(files.key)]
    command = ["openssl", "req", "-x509", *key, *name, "-out", str(files.certificate)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    files.key.chmod(0o600)
    return files


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[CertificateFiles, CertificateFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificate(folder / "first"), make_certificate(folder / "second")


def put(files: CertificateFiles, into: CertificateFiles) -> None:
    put_file(files.certificate, into.certificate)
    put_file(files.key, into.key)


def put_file(new: Path, place: Path) -> None:
    """Replaces the file like a program that renews certificates."""
    fresh = place.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(new.read_bytes())
    fresh.rename(place)


@pytest.fixture
def files(tmp_path: Path, certificates: tuple[CertificateFiles, CertificateFiles]) -> CertificateFiles:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    put(certificates[0], files)
    return files


@pytest.fixture
def server(files: CertificateFiles) -> Iterator[TlsServer]:
    with running(files, Limits()) as server:
        yield server


@contextmanager
def running(files: CertificateFiles, limits: Limits, loop: Any = "auto") -> Iterator[TlsServer]:
    config = uvicorn.Config(
        app,
        port=0,
        loop=loop,
        lifespan="off",
        log_config=None,
        ssl_certfile=files.certificate,
        ssl_keyfile=files.key,
    )
    server = TlsServer(config, Connections(limits), files)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield server
    server.should_exit = True
    thread.join(10)


def url(server: TlsServer) -> str:
    return f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def trusts(authority: CertificateFiles, server: TlsServer) -> bool:
    try:
        return httpx.get(url(server), verify=ssl.create_default_context(cafile=authority.certificate)).is_success
    except httpx.ConnectError:
        return False


def test_a_new_certificate_is_used_without_a_restart(
    server: TlsServer, files: CertificateFiles, certificates: tuple[CertificateFiles, CertificateFiles]
) -> None:
    first, second = certificates
    assert (trusts(first, server), trusts(second, server)) == (True, False)
    put_file(second.certificate, files.certificate)
    server.reload()
    assert trusts(first, server), "the key is still the old one"
    put_file(second.key, files.key)
    server.reload()
    assert (trusts(first, server), trusts(second, server)) == (False, True)


@pytest.mark.parametrize(
    ("scheme", "ca", "host", "remedy"),
    [
        ("http", False, "", "it may speak TLS: then its URL begins with https://"),
        ("https", False, "", "name the site's with --ca-file or UNDERSTUDY_CA_FILE"),
        ("https", True, "localhost", "its certificate is for another name"),
    ],
)
def test_a_command_names_what_is_wrong_with_its_url_or_ca(
    server: TlsServer, files: CertificateFiles, scheme: str, ca: bool, host: str, remedy: str
) -> None:
    address = url(server).replace("https", scheme).replace("127.0.0.1", host or "127.0.0.1")
    with (
        Client(address, "t", files.certificate if ca else None) as client,
        pytest.raises(UnreachableError, match=remedy),
    ):
        client.get("/v1/status")


def test_an_agent_sends_its_token_to_no_other_server(
    server: TlsServer, certificates: tuple[CertificateFiles, CertificateFiles]
) -> None:
    report = Report(WIRE_VERSION, "c", "n1", "b", 0, 1.0, 0.0)

    async def send(authority: CertificateFiles | None) -> bool:
        tls = Tls(ssl.create_default_context(cafile=authority.certificate)) if authority else None
        uplink = Uplink([url(server)], TokenFile(lambda: "secret"), FactQueue(), 5.0, tls=tls)
        try:
            return await uplink.send(report)
        finally:
            await uplink.close()

    first, second = certificates
    assert [asyncio.run(send(one)) for one in (first, second, None)] == [True, False, False]


def test_a_key_that_others_can_read_or_that_does_not_fit_is_refused(
    files: CertificateFiles, certificates: tuple[CertificateFiles, CertificateFiles]
) -> None:
    files.context()
    with pytest.raises(CertificateError, match="cannot be used"):
        CertificateFiles(files.certificate, certificates[1].key).context()
    with pytest.raises(CertificateError, match="No such file"):
        CertificateFiles(files.certificate, files.key.with_name("none")).context()
    files.key.chmod(0o644)
    with pytest.raises(CertificateError, match="other users can read"):
        files.context()


def test_certificate_and_key_belong_together() -> None:
    with pytest.raises(ConfigError, match="set both or none"):
        parse_config('cluster = "c"\n[server]\ntls_certificate = "/c.pem"', "site.toml")
    with pytest.raises(ConfigError, match="nothing is encrypted"):
        parse_config('cluster = "c"\n[server]\ntls_client_ca = "/ca.pem"', "site.toml")


class TestMutual:
    """A client needs a certificate before it can send anything, with `tls_client_ca`."""

    @pytest.fixture
    def mutual(
        self, files: CertificateFiles, certificates: tuple[CertificateFiles, CertificateFiles]
    ) -> Iterator[TlsServer]:
        assert files.client_ca is None
        authority = files.certificate.with_name("clients.pem")
        put_file(certificates[1].certificate, authority)
        with running(replace(files, client_ca=authority), Limits()) as server:
            yield server

    def test_clients_of_another_authority_or_of_none_are_refused_and_a_new_authority_needs_no_restart(
        self,
        mutual: TlsServer,
        certificates: tuple[CertificateFiles, CertificateFiles],
        tmp_path: Path,
    ) -> None:
        first, second = certificates

        def answers(own: CertificateFiles | None) -> bool:
            certificate = (own.certificate, own.key) if own else None
            with Client(url(mutual), "token", first.certificate, certificate=certificate) as client:
                try:
                    return client.get("/") == {"facts": 0}
                except UnreachableError:
                    return False

        assert [answers(one) for one in (None, first, second)] == [False, False, True]
        put_file(first.certificate, tmp_path / "clients.pem")
        mutual.reload()
        assert [answers(one) for one in (None, first, second)] == [False, True, False]
        (tmp_path / "clients.pem").write_text("no certificate")
        mutual.reload()
        assert answers(first), "a file that cannot be used changes nothing"

    def test_an_agent_shows_its_certificate_and_reads_it_again_when_it_is_refused(
        self,
        mutual: TlsServer,
        files: CertificateFiles,
        certificates: tuple[CertificateFiles, CertificateFiles],
        tmp_path: Path,
    ) -> None:
        own = CertificateFiles(tmp_path / "agent.pem", tmp_path / "agent.key")
        put(certificates[0], own)
        config = AgentConfig(
            cluster="c",
            control_plane_urls=(url(mutual),),
            ca_file=files.certificate,
            certificate=own.certificate,
            key=own.key,
        )

        async def send() -> list[bool]:
            uplink = Uplink([url(mutual)], TokenFile(lambda: "secret"), FactQueue(), 5.0, tls=tls_of(config))
            report = Report(WIRE_VERSION, "c", "n1", "b", 0, 1.0, 0.0)
            try:
                refused = await uplink.send(report)
                put(certificates[1], own)
                return [refused, await uplink.send(report), await uplink.send(report)]
            finally:
                await uplink.close()

        assert asyncio.run(send()) == [False, False, True]
        own.key.write_text("none")
        with pytest.raises(AgentConfigError, match="cannot be used"):
            tls_of(config)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("198.18.0.1", False), ("head1", False)],
)
def test_a_control_plane_knows_whether_others_can_connect(host: str, local: bool) -> None:
    assert parse_config(f'cluster = "c"\n[server]\nhost = "{host}"', "site.toml").server.is_local is local


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_handshakes_that_never_end_are_closed_and_count_for_their_address(
    files: CertificateFiles, certificates: tuple[CertificateFiles, CertificateFiles], loop: Any
) -> None:
    limits = Limits(request_seconds_max=3.0, connections_per_address_max=8)
    with running(files, limits, loop) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        mute = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) for _ in range(8)]
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as one_more:
            assert one_more.recv(1) == b""
        assert select.select(mute, [], [], 0)[0] == [], "it was closed before the others"
        mute[0].sendall(b"\x16\x03\x01")
        mute[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        for one in mute:
            with one, suppress(ConnectionError):
                assert len(one.recv(100)) < 10, "nothing but an alert of TLS"
        assert trusts(certificates[0], server)


def test_a_client_that_keeps_an_idle_connection_does_not_delay_the_stop(
    server: TlsServer, certificates: tuple[CertificateFiles, CertificateFiles]
) -> None:
    """Agents do this: nothing reads such a connection, so nothing answers that it ends."""
    address = ("127.0.0.1", server.servers[0].sockets[0].getsockname()[1])
    context = ssl.create_default_context(cafile=certificates[0].certificate)
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname=address[0]) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nhost: it\r\n\r\n")
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        server.should_exit = True
        wait_until(lambda: not server.server_state.connections, "the connection is closed")
