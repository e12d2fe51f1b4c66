"""The dashboard with 12,500 nodes: `make bench-dashboard` writes `build/bench/dashboard.json`.

The real control plane with its database, 12,500 nodes in racks of 40 of which one in a hundred is not in service, and
Debian's Chromium. `first_paint_milliseconds_12500`: from the click to the frame with all tiles, server and network
included; `all_unlike` is the same where no two neighbours look alike. `live_update_milliseconds`: from a round of the
loop that shows 25 other states to the frame that does. `page_bytes` is the page of the fleet, without its script and
style, which browsers keep. `server_cpu_share_20_viewers`: processor time of the server while 20 viewers watch the
fleet, two rounds a second with 25 changes each, without that of the rounds; `no_viewers` is the same without viewers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import httpx

from tests import builders as b
from tests.bench.access import add_viewers, serving, viewer
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import NODES
from tests.bench.tick import Fleet
from tests.dashboard.browser import Browser, Tab, chromium
from tests.dashboard.site import session
from tests.tokens import add_tokens, bearer
from understudy_controlplane.dashboard.live import LiveViews
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology
from understudy_controlplane.serve import tune_interpreter

ROUNDS = 7
RACK = 40
CHANGED = 25
VIEWERS = 20
WATCHED_SECONDS = 15.0
ROUND_SECONDS = 0.5
ILL = (NodeState.SUSPECT, NodeState.QUARANTINED, NodeState.UNKNOWN, NodeState.MANUAL_REPAIR, NodeState.PROBATION)

PAINTED = """
addEventListener('DOMContentLoaded', () => requestAnimationFrame(() => setTimeout(() => {
  window.paintedAt = performance.now(); window.groups = document.querySelectorAll('.g path').length
})))
"""
CHANGE_SEEN = """
new Promise(go => {
  const seen = () => requestAnimationFrame(() => setTimeout(() => go(Date.now())))
  document.addEventListener('understudy-parts', seen, { once: true })
  window.watching = true
})
"""
WATCH = """
import sys, threading, urllib.request
def watch(token):
    request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + token})
    with urllib.request.urlopen(request) as stream:
        sys.stdout.write("open\\n")
        sys.stdout.flush()
        while stream.readline():
            pass
for token in sys.argv[2:]:
    threading.Thread(target=watch, args=(token,), daemon=True).start()
sys.stdin.read()
"""


class Shown:
    """The fleet that is shown; tests of a round of the loop are not what is measured."""

    def __init__(self, fleet: Fleet) -> None:
        self._pulse = fleet.control_plane.loop.pulse
        snapshot = self.snapshot
        names = sorted(snapshot.nodes, key=lambda name: int(name[1:]))
        racks = [
            Domain(DomainKind.RACK, f"r{first // RACK + 1}", tuple(names[first : first + RACK]))
            for first in range(0, len(names), RACK)
        ]
        self._names = names
        self._pulse.snapshot = replace(snapshot, topology=Topology(tuple(racks)))
        self.change(names[::100])
        self._turn = 0

    @property
    def snapshot(self) -> Snapshot:
        assert self._pulse.snapshot is not None
        return self._pulse.snapshot

    def change(self, names: list[str]) -> None:
        """A round of the loop, with other states of these nodes."""
        snapshot, states = self.snapshot, cycle((*ILL, NodeState.IN_SERVICE))
        nodes = dict(snapshot.nodes)
        for name, state in zip(names, states, strict=False):
            nodes[name] = replace(nodes[name], record=b.record(name, state, since=snapshot.now))
        self._pulse.snapshot = replace(snapshot, nodes=nodes, now=snapshot.now + ROUND_SECONDS)
        self._pulse.last_tick_at = self.snapshot.now

    def next_round(self) -> None:
        self._turn += 1
        self.change(self._names[self._turn % 97 :: len(self._names) // CHANGED][:CHANGED])

    def all_unlike(self) -> None:
        self.change(self._names)


def measure(size: Size) -> list[Result]:
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        fleet = Fleet(Path(name), size.of(NODES, 400))
        fleet.tick()
        fleet.hear(0)
        fleet.tick()
        add_tokens(fleet.control_plane.engine)
        add_viewers(fleet.control_plane.engine)
        shown = Shown(fleet)
        with serving(fleet.control_plane) as address:
            url = address.replace("127.0.0.1", "localhost")
            live = fleet.control_plane.live_views
            results = [*measure_viewers(shown, address, live, size), measure_bytes(address)]
            with chromium() as browser:
                cookies = session(url, Role.VIEWER)
                results += measure_page(shown, browser, url, cookies, size)
    return results


def measure_page(shown: Shown, browser: Browser, url: str, cookies: dict[str, str], size: Size) -> list[Result]:
    rounds, groups = size.of(ROUNDS, 1), size.of(300, 8)
    with browser.tab(url, cookies) as tab:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=PAINTED)
        painted = [paint(tab, groups) for _ in range(rounds)]
        tab.wait_for("document.getElementById('link').dataset.state === 'live'")
        updated = [update(tab, shown) for _ in range(size.of(rounds * 2, 1))]
        shown.all_unlike()
        unlike = [paint(tab, groups) for _ in range(rounds)]
    return [
        result("first_paint_milliseconds_12500", "ms", painted, {"all_unlike": unlike}, more_is_better=False),
        result("live_update_milliseconds", "ms", updated, {}, more_is_better=False),
    ]


def paint(tab: Tab, groups: int) -> float:
    tab.open("/dashboard")
    tab.wait_for("window.paintedAt > 0")
    assert tab.run("window.groups") > groups
    return float(tab.run("window.paintedAt"))


def update(tab: Tab, shown: Shown) -> float:
    time.sleep(1.1)  # the update before is over
    tab.run(f"window.seen = {CHANGE_SEEN.strip()}; 0")
    changed_at = time.time()
    shown.next_round()
    return float(tab.run("window.seen")) - changed_at * 1000


def measure_bytes(address: str) -> Result:
    return result("page_bytes", "bytes", [len(page_of(address).encode())], {}, more_is_better=False)


def page_of(address: str) -> str:
    page = httpx.get(f"{address}/dashboard", headers=bearer(Role.VIEWER), trust_env=False, timeout=30)
    assert page.status_code == 200, page.text
    return page.text


def measure_viewers(shown: Shown, address: str, live: LiveViews, size: Size) -> list[Result]:
    alone = [cpu_share(shown, size.of(WATCHED_SECONDS, 0.3)) for _ in range(size.of(2, 1))]
    layout = re.findall(r'data-layout="(\w+)"', page_of(address))[0]
    with watching(f"{address}/dashboard/live?layout={layout}"):
        watched = [cpu_share(shown, size.of(WATCHED_SECONDS, 0.3)) for _ in range(size.of(2, 1))]
        assert live.viewers == VIEWERS, f"{live.viewers} viewers are left"
    return [result("server_cpu_share_20_viewers", "", watched, {"no_viewers": alone}, more_is_better=False)]


def cpu_share(shown: Shown, seconds: float) -> float:
    """Share of one processor."""
    begun, used, rounds = time.monotonic(), time.process_time(), 0.0
    while time.monotonic() - begun < seconds:
        before = time.thread_time()
        shown.next_round()
        rounds += time.thread_time() - before
        time.sleep(ROUND_SECONDS)
    return (time.process_time() - used - rounds) / (time.monotonic() - begun)


@contextmanager
def watching(url: str) -> Iterator[None]:
    """Watches by a process of its own."""
    tokens = [viewer(number) for number in range(VIEWERS)]
    command = [sys.executable, "-c", WATCH, url, *tokens]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as viewers:
        assert viewers.stdout is not None
        try:
            for _ in tokens:
                assert viewers.stdout.readline() == "open\n", "a viewer was refused"
            time.sleep(2.0)
            yield
        finally:
            viewers.kill()
