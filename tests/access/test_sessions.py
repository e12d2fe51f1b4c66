"""Sessions of browsers: who gets one, what ends it, and that no page of another site acts by it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.cookies import SimpleCookie

import pytest
from fastapi.testclient import TestClient
from starlette.requests import HTTPConnection

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import FOREVER, add_tokens, bearer, secret
from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.access.sessions import PER_TOKEN_MAX
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store.audit import entries
from understudy_controlplane.store.tokens import NewToken, TokenStore

pytestmark = pytest.mark.integration

HERE = "https://understudy.example"
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
REASON = {"reason": "cables"}
COOKIE = "__Host-understudy_session"
HOUR = 3600.0


class SetClock:
    at = b.NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@pytest.fixture(scope="module")
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(scope="module")
def plane(shared_database: str, clock: SetClock) -> Iterator[ControlPlane]:
    server = {"database": shared_database}
    with closing(compose(b.config(server=server), Outside(VirtualSlurm(["n1"]), lambda _node: True, clock))) as made:
        made.loop.tick()
        add_tokens(made.engine, ["n1"])
        yield made


@pytest.fixture(autouse=True)
def _a_minute_later(clock: SetClock) -> None:
    """A token may log in again."""
    clock.at += 60.0


def browser(plane: ControlPlane, url: str = HERE) -> TestClient:
    return TestClient(plane.app, base_url=url, follow_redirects=False)


def logged_in(plane: ControlPlane, role: Role = Role.VIEWER, token: str = "") -> TestClient:
    client = browser(plane)
    answer = client.post("/v1/session", json={"token": token or secret(role)}, headers=OWN_PAGE)
    assert answer.status_code == 200, answer.text
    return client


def session_of(client: TestClient) -> str:
    value = client.cookies.get(COOKIE)
    assert value is not None
    return value


def new_token(plane: ControlPlane, name: str, seconds: float = FOREVER) -> str:
    token = NewToken(digest_of(name), Role.OPERATOR, name, "", b.NOW, "a test", b.NOW + seconds)
    TokenStore(plane.engine).add([token])
    return name


def test_a_person_logs_in_reads_and_logs_out(plane: ControlPlane) -> None:
    assert browser(plane).get("/login").status_code == 200
    client = logged_in(plane)
    assert client.get("/v1/session").json() == {"label": "viewer", "role": "viewer"}
    assert [client.get(path).status_code for path in ("/openapi.json", "/v1/decisions")] == [200] * 2
    stolen = session_of(client)
    ended = client.request("DELETE", "/v1/session", headers=OWN_PAGE, json={})
    assert (ended.status_code, client.cookies.get(COOKIE)) == (200, None)
    assert browser(plane).get("/v1/nodes", headers={"Cookie": f"{COOKIE}={stolen}"}).status_code == 401


def test_a_person_who_has_logged_out_can_log_in_at_once(plane: ControlPlane) -> None:
    """SQLite gives the new session the id of the one that has ended."""
    for _ in range(2):
        client = logged_in(plane, Role.OPERATOR)
        assert client.get("/v1/session").status_code == 200
        client.request("DELETE", "/v1/session", headers=OWN_PAGE, json={})


def test_the_login_page_runs_its_own_script_alone_and_load_and_frame_nothing(plane: ControlPlane) -> None:
    page = browser(plane).get("/login")
    policy = page.headers["content-security-policy"]
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "'unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "://" not in page.text
    assert not re.search(r"<[^>]* (on\w+|style|src|action)=", page.text), "the policy would refuse it"


def test_the_cookie_is_for_no_script_no_other_site_and_no_plain_connection(plane: ControlPlane) -> None:
    def cookie(url: str) -> tuple[str, Mapping[str, str]]:
        answer = browser(plane, url).post("/v1/session", json={"token": secret(Role.VIEWER)}, headers=OWN_PAGE)
        ((name, morsel),) = SimpleCookie(answer.headers["set-cookie"]).items()
        return name, {key: value for key, value in morsel.items() if value}

    attributes = {"httponly": True, "secure": True, "samesite": "strict", "path": "/", "max-age": "43200"}
    assert cookie(HERE) == (COOKIE, attributes)
    name, found = cookie("http://localhost:8080")  # browsers refuse the prefix there
    assert (name, found) == ("understudy_session", attributes)


@pytest.mark.parametrize(
    ("role", "expected"),
    [(Role.VIEWER, (200, 403, 403)), (Role.OPERATOR, (200, 202, 403)), (Role.ADMIN, (200, 202, 202))],
)
def test_a_session_may_what_its_token_may(plane: ControlPlane, role: Role, expected: tuple[int, int, int]) -> None:
    client = logged_in(plane, role)
    assert (
        client.get("/v1/decisions").status_code,
        client.post("/v1/pause", json=REASON, headers=OWN_PAGE).status_code,
        client.post("/v1/breaker/reset", json=REASON, headers=OWN_PAGE).status_code,
    ) == expected


@pytest.mark.parametrize("role", [Role.NODE, Role.METRICS, Role.SIGNALS])
def test_tokens_of_programs_get_no_session(plane: ControlPlane, role: Role) -> None:
    token = secret(role, "n1" if role is Role.NODE else "")
    answer = browser(plane).post("/v1/session", json={"token": token}, headers=OWN_PAGE)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


CROSS_SITE: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "https://["},
    {"Origin": f"{HERE}.evil.example"},
    {},
]


@pytest.mark.parametrize("headers", CROSS_SITE)
def test_no_page_of_another_site_changes_anything_by_a_session(plane: ControlPlane, headers: dict[str, str]) -> None:
    client = logged_in(plane, Role.ADMIN)
    for method, path in (("POST", "/v1/pause"), ("POST", "/v1/nodes/n1/hold"), ("DELETE", "/v1/session")):
        answer = client.request(method, path, json=REASON, headers=headers)
        assert (answer.status_code, "page of the control plane" in answer.json()["detail"]) == (403, True)
    assert client.get("/v1/session").status_code == 200


@pytest.mark.parametrize(("name", "other"), [("Sec-Fetch-Site", "cross-site"), ("Origin", "https://evil.example")])
def test_a_request_that_names_two_pages_changes_nothing(plane: ControlPlane, name: str, other: str) -> None:
    client = logged_in(plane, Role.OPERATOR)
    own = "same-origin" if name == "Sec-Fetch-Site" else HERE
    for values in ((own, other), (other, own)):
        answer = client.post("/v1/pause", json=REASON, headers=[(name, value) for value in values])
        assert answer.status_code == 403


def test_no_form_changes_anything_by_a_session_and_an_older_browser_can(plane: ControlPlane) -> None:
    client = logged_in(plane, Role.OPERATOR)
    form = {**OWN_PAGE, "Content-Type": "text/plain"}
    assert client.post("/v1/pause", content=b'{"reason": "x"}', headers=form).status_code == 403
    assert client.post("/v1/pause", json=REASON, headers={"Origin": HERE}).status_code == 202


@pytest.mark.parametrize("headers", [one for one in CROSS_SITE if one])
def test_no_page_of_another_site_logs_a_person_in(plane: ControlPlane, headers: dict[str, str]) -> None:
    answer = browser(plane).post("/v1/session", json={"token": secret(Role.VIEWER)}, headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_session_ends_in_time_and_never_after_its_token(plane: ControlPlane, clock: SetClock) -> None:
    passed = clock.at - b.NOW
    long, short = logged_in(plane), logged_in(plane, token=new_token(plane, "short", passed + HOUR))
    clock.at += HOUR - 1.0
    assert (long.get("/v1/session").status_code, short.get("/v1/session").status_code) == (200, 200)
    clock.at += 1.0
    assert (long.get("/v1/session").status_code, short.get("/v1/session").status_code) == (200, 401)
    clock.at += 11 * HOUR
    assert long.get("/v1/session").status_code == 401


def test_a_session_ends_with_its_token(plane: ControlPlane, clock: SetClock) -> None:
    client, store = logged_in(plane, token=new_token(plane, "leaves")), TokenStore(plane.engine)
    (token,) = (one.id for one in store.all() if one.label == "leaves" and one.session_of is None)
    assert client.get("/v1/session").status_code == 200
    store.revoke([token], "root", clock.at)
    clock.at += 1.0
    assert client.get("/v1/session").status_code == 401
    assert not [one for one in store.all() if one.label == "leaves" and one.is_valid_at(clock.at)]


def test_a_session_that_was_made_while_its_token_was_revoked_ends_too(plane: ControlPlane, clock: SetClock) -> None:
    token, store = new_token(plane, "leaves meanwhile"), TokenStore(plane.engine)
    (number,) = (one.id for one in store.all() if one.label == token)
    store.revoke([number], "root", clock.at)
    late = NewToken(digest_of("late"), Role.OPERATOR, token, "", clock.at, "login", clock.at + HOUR, number)
    store.add([late])
    clock.at += 1.0
    assert browser(plane).get("/v1/session", headers={"Cookie": f"{COOKIE}=late"}).status_code == 401


def test_one_session_can_be_revoked_alone(plane: ControlPlane, clock: SetClock) -> None:
    first = logged_in(plane, Role.ADMIN)
    clock.at += 10.0
    second, store = logged_in(plane, Role.ADMIN), TokenStore(plane.engine)
    (number,) = (one.id for one in [store.find(digest_of(session_of(first)))] if one)
    assert first.get("/v1/session").status_code == 200
    store.revoke([number], "root", clock.at)
    clock.at += 1.0
    assert (first.get("/v1/session").status_code, second.get("/v1/session").status_code) == (401, 200)


def test_a_session_is_no_token_and_a_token_no_session(plane: ControlPlane) -> None:
    stolen = session_of(logged_in(plane, Role.ADMIN))
    client = browser(plane)
    assert client.get("/v1/nodes", headers={"Authorization": f"Bearer {stolen}"}).status_code == 401
    assert client.get("/v1/nodes", headers={"Cookie": f"{COOKIE}={secret(Role.ADMIN)}"}).status_code == 401
    assert client.post("/v1/session", json={"token": stolen}, headers=OWN_PAGE).status_code == 401


def test_a_token_counts_before_the_session_of_the_same_request(plane: ControlPlane) -> None:
    client = logged_in(plane, Role.ADMIN)
    answer = client.post("/v1/breaker/reset", json=REASON, headers={**OWN_PAGE, **bearer(Role.VIEWER)})
    assert answer.status_code == 403
    assert client.request("DELETE", "/v1/session", json={}, headers=bearer(Role.VIEWER)).status_code == 409


def test_sessions_share_the_rate_of_their_token(plane: ControlPlane, clock: SetClock) -> None:
    clients = [logged_in(plane, Role.OPERATOR) for _ in range(2)]
    assert [one.get("/v1/session").status_code for one in clients] == [200, 200]
    headers = [(b"cookie", f"{COOKIE}={session_of(one)}".encode()) for one in clients]
    headers.append((b"authorization", bearer(Role.OPERATOR)["Authorization"].encode()))
    senders = {plane.admission.sender(HTTPConnection({"type": "http", "headers": [one]})) for one in headers}
    assert [one.has_token for one in senders] == [True]


def test_a_token_has_a_few_sessions_and_no_record_of_old_ones(plane: ControlPlane, clock: SetClock) -> None:
    token, clients = new_token(plane, "many"), []
    for _ in range(PER_TOKEN_MAX + 2):
        clock.at += 10.0
        clients.append(logged_in(plane, token=token))
        assert clients[-1].get("/v1/session").status_code == 200
    assert [one.get("/v1/session").status_code for one in clients[:3]] == [401, 401, 200]
    rows = [one for one in TokenStore(plane.engine).all() if one.label == "many" and one.session_of]
    assert len(rows) == PER_TOKEN_MAX
    clock.at += 13 * HOUR
    logged_in(plane, token=token)
    rows = [one for one in TokenStore(plane.engine).all() if one.label == "many" and one.session_of]
    assert len(rows) == 1


def test_logins_are_bounded_and_in_the_audit_and_no_secret_is_stored(plane: ControlPlane, clock: SetClock) -> None:
    client, token, since = browser(plane), new_token(plane, "audited"), clock.at
    statuses = [client.post("/v1/session", json={"token": token}, headers=OWN_PAGE).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert client.request("DELETE", "/v1/session", json={}, headers=OWN_PAGE).status_code == 200
    found = [one for one in entries(plane.engine, since) if one["who"] == "audited"]
    assert [one["action"] for one in found] == ["session begin", "session begin", "session end"]
    assert {(one["role"], one["address"]) for one in found} == {("operator", "testclient")}


@pytest.mark.parametrize("value", ["", "x; x=", f"x; {COOKIE}=y", "\xff", "\xf0\x9f", "a" * 4000, '"\\000"', '"'])
def test_a_cookie_that_is_no_session_is_none(plane: ControlPlane, value: str) -> None:
    for host in (b"understudy.example", b"[::1", b"", b"a:b:c"):
        headers = [(b"host", host), (b"cookie", f"{COOKIE}={value}".encode("latin-1"))]
        assert browser(plane).get("/v1/nodes", headers=headers).status_code == 401
