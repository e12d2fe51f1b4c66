"""The pages in a real browser, Debian's Chromium: what they show, what keys and buttons do, who can read them.

`build/dashboard/` keeps a screenshot of every page, dark and light, on a desktop and on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.bench.access import serving
from tests.dashboard.browser import DESKTOP, PHONE, Browser, Tab, chromium
from tests.dashboard.site import enlarge, open_tickets, played, session, set_state
from tests.notify.site import secret_file
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, as_user, secret
from understudy_controlplane.app import ControlPlane
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record
from understudy_controlplane.store.requests import RequestFilter

pytestmark = pytest.mark.integration

SHOTS = REPOSITORY / "build" / "dashboard"
ACCESSIBLE = (Path(__file__).parent / "accessible.js").read_text()
AXE = next(one for one in files("axe-playwright-python") or () if one.name == "axe.min.js").read_text()
"""axe-core, which this package ships. The package itself, and Playwright, are not used."""
VIOLATIONS = """axe.run(document, { resultTypes: ["violations"] }).then(found => found.violations.map(
    one => `axe ${one.id}: ${one.help}: ${one.nodes.map(node => node.html.slice(0, 120)).slice(0, 3).join(" ")}`))"""
LIVE = "document.getElementById('link').dataset.state === 'live'"
STEADY = f"{LIVE} && [...document.querySelectorAll('time')].every(one => one.title)"
PAGES = {
    "fleet": "",
    "fleet_by_switch": "?by=switch",
    "nodes": "/nodes",
    "nodes_found": "/nodes?q=n1&sort=state",
    "node": "/nodes/n3",
    "jobs": "/jobs",
    "job": "/jobs/1",
    "recoveries": "/recoveries",
    "recovery": "/recoveries/SWAP",
    "incidents": "/incidents",
    "incident": "/incidents/1",
    "guards": "/guards",
    "tickets": "/tickets",
    "ticket": "/tickets/1",
    "notifications": "/notifications",
    "reports": "/reports",
    "missing": "/nodes/none",
}
LIGHT_DESKTOP = ("light", "desktop", DESKTOP)
DARK_DESKTOP = pytest.param("dark", "desktop", DESKTOP, marks=pytest.mark.long)
LOOKS = [pytest.param(*LIGHT_DESKTOP, marks=pytest.mark.long), DARK_DESKTOP, ("dark", "phone", PHONE)]
LIGHT_FIRST = [LIGHT_DESKTOP, DARK_DESKTOP, pytest.param("dark", "phone", PHONE, marks=pytest.mark.long)]
"""Looks of pages that are drawn like those of the test with all of them."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    folder = tmp_path_factory.mktemp("dashboard")
    url = secret_file(folder / "receiver.url", "mailto://127.0.0.1:1/?from=a@example.org&to=b@example.org")
    team = {"kind": "apprise", "url_file": url, "weekly_report": True}
    receivers = {"team": team, "pager": {"kind": "apprise", "url_file": url, "least": "page"}}
    made = played(folder, notify={"receivers": receivers, "owners_url_file": url, "owners_mail_domains": []})
    made.control_plane.loop.pulse.notify_problems = ["no notification reaches pager: ConnectError: refused; 4 tries"]
    enlarge(made.control_plane, racks=24)
    open_tickets(made)
    return made


@pytest.fixture(scope="module")
def plane(rehearsal: Rehearsal) -> ControlPlane:
    return rehearsal.control_plane


@pytest.fixture(scope="module")
def url(plane: ControlPlane) -> Iterator[str]:
    with serving(plane) as address:
        yield address.replace("127.0.0.1", "localhost")  # there a cookie needs no TLS


@pytest.fixture(scope="module")
def cookies(url: str) -> dict[str, str]:
    return session(url)


@pytest.fixture
def tab(browser: Browser, url: str, cookies: dict[str, str]) -> Iterator[Tab]:
    with browser.tab(url, cookies) as opened:
        yield opened
        assert opened.problems == []


@pytest.mark.parametrize(("scheme", "device", "size"), LOOKS, ids=str)
def test_every_page_is_drawn_is_live_and_can_be_read_by_all(
    tab: Tab, rehearsal: Rehearsal, scheme: str, device: str, size: tuple[int, int]
) -> None:
    tab.resize(size)
    tab.scheme(scheme)
    lacking = {}
    for name, path in PAGES.items():
        tab.open(f"/dashboard{path.replace('SWAP', str(rehearsal.recoveries()[-1].id))}")
        if name != "missing":
            tab.wait_for(STEADY)
        tab.screenshot(SHOTS / f"{name}-{scheme}-{device}.png")
        wider = tab.run("document.documentElement.scrollWidth > innerWidth")
        lacking[name] = [*tab.run(ACCESSIBLE), *axe(tab), *(["it is wider than its window"] if wider else [])]
    # The server answers the page of a node that there is not with 404, which the browser reports.
    tab.problems = [one for one in tab.problems if "/nodes/none" not in one]
    assert {name: found for name, found in lacking.items() if found} == {}


@pytest.mark.parametrize(("scheme", "device", "size"), LIGHT_FIRST, ids=str)
def test_a_first_visit_leads_through_what_is_watched_what_it_would_have_done_and_what_is_missing(
    browser: Browser, tmp_path: Path, scheme: str, device: str, size: tuple[int, int]
) -> None:
    """A fresh install, and one that has seen a fault."""
    rehearsal = Rehearsal(tmp_path)
    rehearsal.restart_control_plane(mode="observe")
    add_tokens(rehearsal.control_plane.engine, ["n1"])
    with serving(rehearsal.control_plane) as address:
        url = address.replace("127.0.0.1", "localhost")
        with browser.tab(url, session(url)) as tab:
            tab.resize(size)
            tab.scheme(scheme)
            tab.open("/dashboard")
            tab.wait_for("document.body.innerText.includes('The control plane starts')")
            tab.screenshot(SHOTS / f"starting-{scheme}-{device}.png")
            assert [*tab.run(ACCESSIBLE), *axe(tab)] == []
            rehearsal.run(1)
            tab.wait_for("document.getElementById('map') !== null")  # by itself
            for moment in ("first", "later"):
                tab.open("/dashboard")
                tab.wait_for(STEADY)
                tab.screenshot(SHOTS / f"{moment}_visit_fleet-{scheme}-{device}.png")
                assert [*tab.run(ACCESSIBLE), *axe(tab)] == []
                assert ("1 incident is open, and the control plane only observes" in tab.text()) is (moment == "later")
                tab.run("document.querySelector('#attention .note a').click()")
                tab.wait_for("location.pathname === '/dashboard/guards' && document.readyState === 'complete'")
                tab.wait_for(STEADY)
                tab.screenshot(SHOTS / f"{moment}_visit_guards-{scheme}-{device}.png")
                assert [*tab.run(ACCESSIBLE), *axe(tab)] == []
                parts = tab.run("[...document.querySelectorAll('main > section')].map(one => one.id)")
                assert parts == ["watched", "observed", "ready", "spares", "budgets"]
                assert tab.run("[...document.querySelectorAll('.todo .open')].every(one => one.querySelector('code'))")
                if moment == "first":
                    assert "Nothing was held back" in tab.text()
                    rehearsal.fail("n3")
                    rehearsal.run(5)
            assert "Xid 79" in tab.run("document.getElementById('observed').textContent")
            assert tab.problems == []


@pytest.mark.parametrize(("scheme", "device", "size"), LOOKS, ids=str)
def test_a_fleet_of_12_500_nodes_fits_its_window(
    browser: Browser, tmp_path: Path, scheme: str, device: str, size: tuple[int, int]
) -> None:
    rehearsal = Rehearsal(tmp_path)
    add_tokens(rehearsal.control_plane.engine, ["n1"])
    enlarge(rehearsal.control_plane, racks=781)
    with serving(rehearsal.control_plane) as address:
        url = address.replace("127.0.0.1", "localhost")
        with browser.tab(url, session(url)) as tab:
            tab.resize(size)
            tab.scheme(scheme)
            tab.open("/dashboard")
            tab.wait_for(STEADY)
            tab.screenshot(SHOTS / f"fleet_12500-{scheme}-{device}.png")
            groups = "[...document.querySelectorAll('.g')]"
            tiles = tab.run(f"{groups}.reduce((sum, one) => sum + one.dataset.nodes.split(' ').length, 0)")
            assert tiles == 781 * 16 + 8
            assert [*tab.run(ACCESSIBLE), *axe(tab)] == []
            assert not tab.run("document.documentElement.scrollWidth > innerWidth")


def axe(tab: Tab) -> list[str]:
    """What axe-core finds."""
    tab.run(f"window.axe || (() => {{ {AXE} }})()")
    found: list[str] = tab.run(VIOLATIONS)
    return found


SPOILT = {
    "document.querySelector('h1').remove()": "first heading",
    "document.getElementById('q').labels[0].remove()": "no name",
    "document.getElementById('theme').ariaLabel = ''; document.getElementById('theme').textContent = ''": "no name",
    "document.querySelector('main h2').style.color = '#8a9a95'": "contrast",
    "document.querySelector('#why th').removeAttribute('scope')": "head",
    "document.querySelector('svg.timeline').removeAttribute('aria-label')": "no text",
}


def test_what_checks_the_pages_finds_what_is_wrong(
    browser: Browser, url: str, cookies: dict[str, str], rehearsal: Rehearsal
) -> None:
    for spoil, found in SPOILT.items():
        with browser.tab(url, cookies) as tab:
            tab.scheme("light")
            tab.open(f"/dashboard/recoveries/{rehearsal.recoveries()[-1].id}")
            tab.wait_for(STEADY)
            tab.run(f"source.close(); {spoil}")
            assert found in str(tab.run(ACCESSIBLE)), spoil
            assert ("color-contrast" in str(axe(tab))) is (found == "contrast"), spoil


def tile(name: str) -> str:
    """A script: the code of the node's tile."""
    return (
        f"(() => {{ const group = [...document.querySelectorAll('.g')].find(one => "
        f"one.dataset.nodes.split(' ').includes('{name}')); return group.querySelector('svg').dataset.tiles"
        f"[group.dataset.nodes.split(' ').indexOf('{name}')] }})()"
    )


def test_a_tile_changes_where_its_node_does(tab: Tab, plane: ControlPlane) -> None:
    tab.open("/dashboard")
    tab.wait_for(STEADY)
    assert tab.run(tile("r05n05")) in "oi"
    set_state(plane, "r05n05", NodeState.QUARANTINED)
    tab.wait_for(f"{tile('r05n05')} === 'q'")
    tab.wait_for("document.getElementById('ill').textContent.includes('r05n05')")
    set_state(plane, "r05n05", NodeState.IN_SERVICE)
    tab.wait_for(f"{tile('r05n05')} !== 'q'")


def test_keys_move_over_the_map_and_open_a_node(tab: Tab) -> None:
    tab.open("/dashboard")
    tab.wait_for(STEADY)
    tab.run("document.getElementById('map').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        tab.press(key)
    tab.wait_for("document.getElementById('pointed').textContent.startsWith('r01n09, r01: ')")
    tab.press("Enter")
    tab.wait_for("location.pathname.endsWith('/nodes/r01n09')")


def test_a_click_opens_the_node_below_it(tab: Tab) -> None:
    tab.open("/dashboard")
    tab.wait_for(STEADY)
    box = tab.run("document.querySelector('#g-0 svg').getBoundingClientRect().toJSON()")
    where = {"x": box["x"] + box["width"] * 2.5 / 8, "y": box["y"] + box["height"] * 0.75}
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)
    tab.wait_for("location.pathname.endsWith('/nodes/r01n11')")


def test_the_legend_shows_one_state_alone_also_after_an_update(tab: Tab, plane: ControlPlane) -> None:
    tab.open("/dashboard")
    tab.wait_for(STEADY)
    tab.run("document.getElementById('only-s').click()")
    set_state(plane, "r06n06", NodeState.SUSPECT)
    tab.wait_for(f"{tile('r06n06')} === 's'")
    tab.wait_for("document.getElementById('only-s').getAttribute('aria-pressed') === 'true'")
    assert tab.run("document.getElementById('map').dataset.only") == "s"
    assert tab.run("getComputedStyle(document.querySelector('.map .t-o')).opacity") == "0.16"


def requests_of(plane: ControlPlane) -> list[Record]:
    return plane.reads.stores.requests.newest(10, ID_MAX, RequestFilter())


def test_an_operator_sees_what_comes_of_a_request_gives_a_reason_and_sends_it(tab: Tab, plane: ControlPlane) -> None:
    tab.open("/dashboard/nodes/n1")
    tab.wait_for(STEADY)
    tab.run("document.querySelector('[data-act=\"v1/nodes/n1/hold\"]').click()")
    tab.wait_for("/^(It will be done|A guard)/.test(document.getElementById('ask-prospect').textContent)")
    before = len(requests_of(plane))
    tab.run("document.getElementById('ask-yes').click()")  # without a reason the browser sends nothing
    tab.type("cables are swapped")
    tab.press("Tab")
    tab.run("document.getElementById('ask-yes').click()")
    tab.wait_for("!document.getElementById('ask').open")
    newest, *older = requests_of(plane)
    assert (newest["verb"], newest["reason"], newest["by"], len(older)) == (
        *(Verb.HOLD.value, "cables are swapped", "operator"),
        before,
    )
    set_state(plane, "r01n01", NodeState.IN_SERVICE)  # a round
    tab.wait_for("document.getElementById('happened').textContent.includes('cables are swapped')")


ANSWERED = "!/^(Asking|$)/.test(document.getElementById('ask-prospect').textContent)"


def test_every_button_shows_what_would_come_of_it_and_asks_for_a_reason(tab: Tab) -> None:
    """An action that cannot be done now is answered with why, and cannot be sent."""
    found = {}
    for path in ("", "/nodes/n1", "/nodes/n3", "/nodes/n5", "/jobs/1", "/tickets", "/guards"):
        tab.open(f"/dashboard{path}")
        tab.wait_for(STEADY)
        for button in tab.run("[...document.querySelectorAll('.act')].map(one => one.id)"):
            tab.run(f"document.getElementById('{button}').click()")
            tab.wait_for(ANSWERED)
            title, prospect, may_send = tab.run(
                "[...['ask-title', 'ask-prospect'].map(one => document.getElementById(one).textContent), "
                "!document.getElementById('ask-yes').disabled]"
            )
            done = prospect.startswith(("It will be done", "A guard holds it back", "It is only recorded"))
            assert done is may_send, (title, prospect)
            found[button] = title
            assert tab.run("document.activeElement.id") == "ask-reason"
            tab.run("document.getElementById('ask-no').click()")
    # What cannot be done now, the browser reports as an answer with an error.
    tab.problems = [one for one in tab.problems if "409" not in one]
    verbs = (
        "pause",
        "hold",
        "quarantine",
        "release",
        "validate",
        "burn-in",
        "retire",
        "add",
        "move",
        "save",
        "ack",
        "close",
    )
    assert [verb for verb in verbs if not any(f"-{verb}" in button for button in found)] == []


def test_a_gang_is_moved_from_the_page_of_the_node_that_it_is_to_leave(
    tab: Tab, plane: ControlPlane, rehearsal: Rehearsal
) -> None:
    node = rehearsal.gang_nodes()[0]
    tab.open(f"/dashboard/nodes/{node}")
    tab.wait_for(STEADY)
    tab.run("document.getElementById('act-v1-jobs-1-move-later').click()")
    tab.wait_for("document.getElementById('ask-prospect').textContent.includes('steps lost')")
    tab.type("its cables are swapped at noon")
    tab.run("document.getElementById('ask-yes').click()")
    tab.wait_for("!document.getElementById('ask').open")
    newest = requests_of(plane)[0]
    assert (newest["verb"], newest["reason"]) == (Verb.MOVE_JOB.value, "its cables are swapped at noon")
    (asked,) = in_force(plane.stores.requests.stored(), 0.0).moves.values()
    assert (asked.off, asked.at_checkpoint) == ((node,), True)


@pytest.mark.parametrize(("scheme", "device", "size"), LIGHT_FIRST, ids=str)
def test_the_page_of_a_user_is_live_and_can_be_read_by_all(
    browser: Browser, url: str, rehearsal: Rehearsal, scheme: str, device: str, size: tuple[int, int]
) -> None:
    user_id = next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    with browser.tab(url, {}) as tab:
        user = as_user(rehearsal.control_plane.admission, user_id, "researcher", "127.0.0.1")
        tab.call("Network.setExtraHTTPHeaders", headers=user)
        tab.resize(size)
        tab.scheme(scheme)
        tab.open("/dashboard")
        tab.wait_for("location.pathname === '/dashboard/my'")
        tab.wait_for(STEADY)
        tab.screenshot(SHOTS / f"my-{scheme}-{device}.png")
        assert tab.run(ACCESSIBLE) == []
        assert not tab.run("document.documentElement.scrollWidth > innerWidth")
        tab.run("document.getElementById('act-v1-jobs-1-pause').click()")
        tab.wait_for("document.getElementById('ask-prospect').textContent.startsWith('It will be done')")
        assert tab.problems == []


def test_a_viewer_has_no_buttons_that_act(browser: Browser, url: str) -> None:
    with browser.tab(url, session(url, Role.VIEWER)) as tab:
        tab.open("/dashboard/nodes/n3")
        tab.wait_for(STEADY)
        assert tab.run("document.querySelectorAll('.act').length") == 0
        assert "role viewer" in tab.text()


def test_logging_in_leads_to_the_page_that_was_wanted(browser: Browser, url: str) -> None:
    with browser.tab(url, {}) as tab:
        tab.open("/dashboard/nodes/n3")
        tab.wait_for("location.pathname === '/login'")
        tab.wait_for("document.readyState === 'complete'")
        tab.run("document.getElementById('token').focus()")
        tab.type(secret(Role.ADMIN))
        tab.press("Enter")
        tab.wait_for("location.pathname === '/dashboard/nodes/n3'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_says_where_the_token_is_and_can_be_read_by_all(browser: Browser, url: str, scheme: str) -> None:
    with browser.tab(url, {}) as tab:
        tab.scheme(scheme)
        tab.open("/login")
        assert "sudo cat /etc/understudy/operator.token" in tab.text()
        tab.screenshot(SHOTS / f"login-{scheme}.png")
        dark = sum(map(int, re.findall(r"\d+", tab.run("getComputedStyle(document.body).backgroundColor")))) < 384
        assert dark is (scheme == "dark")
        assert axe(tab) == []


def test_a_person_logs_out(browser: Browser, url: str) -> None:
    with browser.tab(url, session(url)) as tab:
        tab.open("/dashboard/jobs")
        tab.wait_for(STEADY)
        tab.run("document.getElementById('log-out').click()")
        tab.wait_for("location.pathname === '/login' && document.readyState === 'complete'")
        tab.open("/dashboard/jobs")
        tab.wait_for("location.pathname === '/login'")


def test_a_session_that_has_ended_leads_to_the_login(browser: Browser, url: str, rehearsal: Rehearsal) -> None:
    with browser.tab(url, {"understudy_session": "it-has-ended"}) as tab:
        tab.open("/dashboard")
        tab.wait_for("location.pathname === '/login'")


def test_a_lost_connection_is_shown_and_ends(tab: Tab) -> None:
    tab.open("/dashboard")
    tab.wait_for(STEADY)
    tab.run("heardAt -= 20000")  # as if nothing had been heard for 20 s
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    tab.call("Network.emulateNetworkConditions", offline=True, **offline)
    tab.run("source.onerror()")
    tab.wait_for("document.getElementById('link').textContent === 'disconnected'")
    assert re.search(r"No connection to the control plane: what you see is from \d+ s ago", tab.text())
    tab.screenshot(SHOTS / "disconnected.png", whole=False)
    tab.call("Network.emulateNetworkConditions", offline=False, **offline)
    tab.wait_for(LIVE)
    tab.wait_for("document.getElementById('stale').hidden")
    tab.problems = [one for one in tab.problems if "ERR_INTERNET_DISCONNECTED" not in one]


def test_a_control_plane_that_stands_still_is_shown(tab: Tab) -> None:
    tab.open("/dashboard")
    tab.wait_for(STEADY)
    tab.run("ahead -= 60")  # as if the newest round were a minute old
    tab.wait_for("document.getElementById('stale').textContent.includes('has not looked at the cluster')")
    tab.screenshot(SHOTS / "stale.png", whole=False)
