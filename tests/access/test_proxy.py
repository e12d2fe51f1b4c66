"""People whom a reverse proxy names: the proxy alone is believed, and no page of another site acts in their name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog.testing
from fastapi.testclient import TestClient

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import ConfigError, parse_config
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store.audit import entries

pytestmark = pytest.mark.integration

PROXY, ELSEWHERE = "10.0.0.5", "10.0.0.6"
ACCESS = {
    "proxy_addresses": [PROXY],
    "proxy_roles": {"bob": "operator"},
    "proxy_group_roles": {"hpc": "viewer", "root of all": "admin"},
}
REASON = {"reason": "cables"}


def made(folder: Path, access: object, limits: object = None) -> ControlPlane:
    server = {"database": with_tokens(new_database(folder / "fleet.db"))}
    plane = compose(
        b.config(server=server, access=access, limits=limits or {}), Outside(VirtualSlurm(["n1"]), lambda _node: True)
    )
    plane.loop.tick()
    return plane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with closing(made(tmp_path_factory.mktemp("proxy"), ACCESS)) as plane:
        yield plane


def send(
    plane: ControlPlane, path: str, *headers: tuple[str, str], address: str = PROXY, **more: Any
) -> httpx2.Response:
    method = "POST" if more else "GET"
    return TestClient(plane.app, client=(address, 40000)).request(
        method, path, headers=[(name.encode(), value.encode("latin-1")) for name, value in headers], **more
    )


def user(name: str) -> tuple[str, str]:
    return ("X-Remote-User", name)


def groups(names: str) -> tuple[str, str]:
    return ("x-remote-groups", names)


def test_the_proxys_users_have_the_highest_of_their_roles(plane: ControlPlane) -> None:
    def may(*headers: tuple[str, str]) -> list[int]:
        return [
            send(plane, "/v1/decisions", *headers).status_code,
            send(plane, "/v1/pause", *headers, json=REASON).status_code,
            send(plane, "/v1/breaker/reset", *headers, json=REASON).status_code,
        ]

    assert may(user("ann"), groups("staff, hpc")) == [200, 403, 403]
    assert may(user("bob")) == [200, 202, 403]
    assert may(user("bob"), groups("hpc,root of all")) == [200, 202, 202]
    assert may(user("eve"), groups("staff")) == [403, 403, 403]
    assert may(user("hpc")) == [403, 403, 403]
    assert may() == [401, 401, 401]


def test_a_user_of_the_cluster_sees_their_own_jobs_and_no_more(tmp_path: Path) -> None:
    """The proxy's name is that of an account on this host; `root` has one everywhere."""
    access = {"proxy_addresses": [PROXY], "proxy_group_roles": {"staff": "user", "hpc": "viewer"}}
    with closing(made(tmp_path, access)) as plane:
        of_root = user("root"), groups("staff")
        assert send(plane, "/dashboard/my", *of_root).status_code == 200
        assert "Jobs of user root (0)" in send(plane, "/dashboard/my", *of_root).text
        assert send(plane, "/v1/jobs", *of_root).status_code == 200
        assert send(plane, "/v1/decisions", *of_root).status_code == 403
        assert send(plane, "/v1/pause", *of_root, json=REASON).status_code == 403
        stranger = send(plane, "/dashboard/my", user("no-such-account"), groups("staff"))
        assert (stranger.status_code, "has no account" in stranger.text) == (403, True)
        both = send(plane, "/v1/decisions", user("root"), groups("staff,hpc"))
        assert both.status_code == 200, "the highest role counts"
        forged = send(plane, "/dashboard/my", *of_root, address=ELSEWHERE)
        assert forged.url.path == "/login", "it leads to the log-in"


def test_the_audit_names_the_person(plane: ControlPlane) -> None:
    before = len([*entries(plane.engine, 0.0)])
    send(plane, "/v1/pause", user("bob"), json=REASON)
    (entry,) = [*entries(plane.engine, 0.0)][before:]
    assert (entry["who"], entry["role"], entry["address"]) == ("bob (proxy)", "operator", PROXY)


def test_the_header_from_elsewhere_is_not_believed_but_counted_and_logged_once(plane: ControlPlane) -> None:
    count = partial(plane.loop.pulse.meters.registry.get_sample_value, "understudy_proxy_headers_refused_total")
    before = count() or 0
    forged = user("bob"), ("X-Forwarded-For", PROXY), ("Forwarded", f"for={PROXY}"), ("X-Real-IP", PROXY)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            assert send(plane, "/v1/pause", *forged, address=ELSEWHERE, json=REASON).status_code == 401
    assert [one["address"] for one in lines if one["event"] == "proxy_header_not_believed"] == [ELSEWHERE]
    assert count() == before + 3
    viewer = bearer(Role.VIEWER)["Authorization"]
    own = send(plane, "/v1/pause", *forged, ("Authorization", viewer), address=ELSEWHERE, json=REASON)
    assert (own.status_code, "role viewer" in own.json()["detail"]) == (403, True)


def test_a_token_beside_the_proxys_header_does_not_count(plane: ControlPlane) -> None:
    admin = ("Authorization", bearer(Role.ADMIN)["Authorization"])
    assert send(plane, "/v1/breaker/reset", user("bob"), admin, json=REASON).status_code == 403
    assert send(plane, "/v1/breaker/reset", admin, json=REASON).status_code == 202


def test_what_a_client_may_have_added_is_refused(plane: ControlPlane) -> None:
    for headers in (
        [user("bob"), user("ann")],
        [user("ann"), user("bob")],
        [user("bob"), groups("hpc"), groups("root of all")],
        [user("")],
        [user("bob, ann")],
        [user("b" * 300)],
    ):
        assert send(plane, "/v1/status", *headers).status_code == 403, headers


def test_white_space_of_a_name_makes_it_no_other_name(plane: ControlPlane) -> None:
    for name in ("bob\xa0", "\x85bob", "bob\x1f"):
        assert send(plane, "/v1/pause", user(name), json=REASON).status_code == 403


def test_another_site_cannot_make_a_browser_change_anything(plane: ControlPlane) -> None:
    """These types a page may send to any other site, with its cookies, without a question before."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        body = b'{"reason": "cables"}'
        answer = send(plane, "/v1/pause", user("bob"), ("Content-Type", kind), content=body)
        assert (answer.status_code, "application/json" in answer.json()["detail"]) == (403, True)
    for page in (("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site"), ("Origin", "https://evil.example")):
        answer = send(plane, "/v1/pause", user("bob"), page, json=REASON)
        assert (answer.status_code, "page of the control plane" in answer.json()["detail"]) == (403, True)
    asked = TestClient(plane.app, client=(PROXY, 1)).options("/v1/pause", headers={"Origin": "https://evil.example"})
    assert (asked.status_code, [one for one in asked.headers if one.startswith("access-control")]) == (405, [])


def test_each_person_behind_the_proxy_has_a_rate_of_their_own(tmp_path: Path) -> None:
    limits = {"reads_per_second_per_token": 0.1, "requests_per_second_per_address": 0.1}
    with closing(made(tmp_path, ACCESS, limits)) as plane:

        def statuses(name: str, address: str = PROXY) -> set[int]:
            return {send(plane, "/v1/status", user(name), groups("hpc"), address=address).status_code for _ in range(8)}

        assert statuses("ann") == {200, 429}
        assert send(plane, "/v1/status", user("bob")).status_code == 200
        assert statuses("ann", ELSEWHERE) == {401, 429}, "elsewhere the address counts, not the name"
        assert send(plane, "/v1/status", user("bob"), address=ELSEWHERE).status_code == 429


def test_no_header_is_believed_where_the_site_names_no_proxy(tmp_path: Path) -> None:
    with closing(made(tmp_path, {"proxy_roles": {"bob": "admin"}})) as plane:
        assert send(plane, "/v1/status", user("bob")).status_code == 401
        assert plane.loop.pulse.meters.registry.get_sample_value("understudy_proxy_headers_refused_total") == 0


def test_what_makes_no_sense_is_refused_at_the_start() -> None:
    for line in ('proxy_addresses = ["proxy1"]', 'proxy_roles = { bob = "node" }', 'proxy_user_header = "X User"'):
        with pytest.raises(ConfigError):
            parse_config(f'cluster = "c"\n[access]\n{line}\n', "site.toml")
