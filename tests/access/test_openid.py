"""A real reverse proxy signs people in by OpenID Connect: Apache, mod_auth_openidc, `deploy/proxy/understudy.conf`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest

from tests import REPOSITORY
from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.testbed.configuration import free_ports
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.serve import listen, server_of
from understudy_controlplane.store.audit import entries

pytestmark = pytest.mark.integration

CONFIGURATION = REPOSITORY / "deploy" / "proxy" / "understudy.conf"
CLIENT, CLIENT_SECRET = "understudy", "a-secret-that-proxy-and-provider-share"
MODULES = ("mpm_event", "authn_core", "authz_core", "authz_user", "headers", "proxy", "proxy_http", "auth_openidc")
ACCESS = {
    "proxy_addresses": ["127.0.0.1"],
    "proxy_roles": {"bob": "operator"},
    "proxy_group_roles": {"hpc": "viewer", "owners": "admin"},
}
PAGE = {"Accept": "text/html"}
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
REASON = {"reason": "cables"}


class Provider(ThreadingHTTPServer):
    """Signs in `user`, by the flow with an authorization code."""

    user: str = "bob"
    groups: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ProviderRequest)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.nonce = ""


class ProviderRequest(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/.well-known/openid-configuration":
            self._answer(
                {
                    "issuer": self.server.issuer,
                    "authorization_endpoint": f"{self.server.issuer}/authorize",
                    "token_endpoint": f"{self.server.issuer}/token",
                    "jwks_uri": f"{self.server.issuer}/keys",
                    "response_types_supported": ["code"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["HS256"],
                }
            )
        elif url.path == "/authorize":
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            self.server.nonce = asked["nonce"]
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{urlencode({'code': 'c', 'state': asked['state']})}")
            self.end_headers()
        else:
            self._answer({"keys": []})

    def do_POST(self) -> None:
        """The token."""
        self.rfile.read(int(self.headers["Content-Length"]))
        now = int(time.time())
        claims = {
            "iss": self.server.issuer,
            "sub": f"id of {self.server.user}",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": self.server.nonce,
            "preferred_username": self.server.user,
            "groups": list(self.server.groups),
        }
        signed = encoded({"alg": "HS256", "typ": "JWT"}) + b"." + encoded(claims)
        signature = hmac.digest(CLIENT_SECRET.encode(), signed, hashlib.sha256)
        token = signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
        self._answer({"access_token": "x", "token_type": "Bearer", "id_token": token.decode()})

    def _answer(self, content: Mapping[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No line for each request."""


def encoded(content: Mapping[str, object]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    database = new_database(tmp_path_factory.mktemp("openid") / "fleet.db")
    config = b.config(server={"database": database, "port": 0}, access=ACCESS)
    with closing(compose(config, Outside(VirtualSlurm(["n1"]), lambda _node: True))) as plane:
        plane.loop.tick()
        yield plane


@pytest.fixture(scope="module")
def pages(plane: ControlPlane, provider: Provider) -> Iterator[str]:
    """The proxy's URL."""
    server = server_of(plane, plane.current.config, None)
    [listening] = listen(plane.current.config.server)
    thread = threading.Thread(target=server.run, args=([listening],))
    with apache(f"http://127.0.0.1:{listening.getsockname()[1]}", provider.issuer) as pages:
        thread.start()
        try:
            yield pages
        finally:  # which ends the streams that hold the proxy
            server.should_exit = True
            thread.join()


@contextmanager
def apache(control_plane: str, issuer: str) -> Iterator[str]:
    program = shutil.which("apache2", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "no apache2: apt-get install apache2-bin libapache2-mod-auth-openidc"
    [port] = free_ports(1)
    pages = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="understudy-apache-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        lines = [
            f"ServerRoot {folder}",
            f"PidFile {folder}/pid",
            f"ErrorLog {folder}/log",
            f"DefaultRuntimeDir {folder}",
            *(f"LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so" for module in MODULES),
            f"Listen 127.0.0.1:{port}",
            "ServerName 127.0.0.1",
            "User nobody",
            "Group nogroup",
            f"Define UNDERSTUDY_URL {control_plane}",
            f"Define UNDERSTUDY_PAGES {pages}",
            f"OIDCProviderMetadataURL {issuer}/.well-known/openid-configuration",
            f"OIDCClientID {CLIENT}",
            f"OIDCClientSecret {CLIENT_SECRET}",
            "OIDCCryptoPassphrase a-passphrase-of-the-test",
            "OIDCIDTokenSignedResponseAlg HS256",
            f"Include {CONFIGURATION}",
        ]
        (folder / "apache2.conf").write_text("\n".join(lines) + "\n")
        server = subprocess.Popen([program, "-f", folder / "apache2.conf", "-DFOREGROUND"], env={"no_proxy": "*"})
        try:
            wait_for(port, server, folder / "log")
            yield pages
        finally:
            server.terminate()
            server.wait(60)


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
            time.sleep(0.02)
        else:
            return


SignIn = Callable[..., httpx.Client]


@pytest.fixture
def sign_in(pages: str, provider: Provider) -> Iterator[SignIn]:
    """Sign-in of a user with groups: a browser that the proxy knows from then on."""
    with ExitStack() as browsers:

        def signed_in(user: str, *groups: str) -> httpx.Client:
            provider.user, provider.groups = user, groups
            browser = browsers.enter_context(
                httpx.Client(base_url=pages, follow_redirects=True, trust_env=False, timeout=60)
            )
            answer = browser.get("/v1/status", headers=PAGE)
            assert answer.history, "the proxy asks the provider first"
            assert answer.url.path == "/v1/status", answer.text
            return browser

        yield signed_in


def may(browser: httpx.Client, **headers: str) -> list[int]:
    more = OWN_PAGE | headers
    return [
        browser.get("/v1/decisions", headers=headers).status_code,
        browser.post("/v1/pause", json=REASON, headers=more).status_code,
        browser.post("/v1/breaker/reset", json=REASON, headers=more).status_code,
    ]


def test_a_person_has_the_role_of_their_name_or_of_a_group(plane: ControlPlane, sign_in: SignIn) -> None:
    assert may(sign_in("bob")) == [200, 202, 403]
    assert [(one["who"], one["role"]) for one in entries(plane.engine, 0.0)] == [("bob (proxy)", "operator")]
    assert may(sign_in("ann", "staff", "hpc")) == [200, 403, 403]
    assert may(sign_in("eve", "staff", "owners")) == [200, 202, 202]
    assert may(sign_in("kim", "staff")) == [403, 403, 403]


def test_a_request_without_signing_in_never_reaches_the_control_plane(pages: str) -> None:
    with httpx.Client(base_url=pages, trust_env=False, timeout=60) as stranger:
        assert stranger.get("/v1/status", headers=PAGE | {"X-Remote-User": "bob"}).status_code == 302
        forged = {"Accept": "application/json", "X-Remote-User": "bob", "X-Remote-Groups": "owners"}
        assert may(stranger, **forged) == [401, 401, 401]


def test_what_a_client_writes_into_the_headers_is_replaced(plane: ControlPlane, sign_in: SignIn) -> None:
    forged = {
        "X-Remote-User": "bob",
        "X-Remote-Groups": "owners",
        "OIDC_CLAIM_groups": "owners",
        "X-Forwarded-For": "127.0.0.1",
    }
    before = len([*entries(plane.engine, 0.0)])
    assert may(sign_in("ann", "hpc"), **forged) == [200, 403, 403]
    assert may(sign_in("kim"), **forged) == [403, 403, 403]
    twice = [("x-remote-user", "bob"), ("X-Remote-User", "bob"), *OWN_PAGE.items()]
    assert sign_in("ann", "hpc").post("/v1/pause", json=REASON, headers=twice).status_code == 403
    assert len([*entries(plane.engine, 0.0)]) == before


def test_a_page_of_another_site_changes_nothing(pages: str, sign_in: SignIn) -> None:
    browser = sign_in("bob")
    for page in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert browser.post("/v1/pause", json=REASON, headers=page).status_code == 403
    assert browser.post("/v1/pause", json=REASON, headers={"Origin": pages}).status_code == 202


def test_events_come_through_the_proxy_at_once(sign_in: SignIn) -> None:
    browser = sign_in("bob")
    with browser.stream("GET", "/v1/events") as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        assert next(lines)
        paused = browser.post("/v1/pause", json={"reason": "seen by the stream"}, headers=OWN_PAGE)
        assert paused.status_code == 202, paused.text
        assert any("seen by the stream" in line for line in lines)
