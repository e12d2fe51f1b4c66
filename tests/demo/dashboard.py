"""The dashboard of the demo, at an address of this host: there a browser keeps the cookie of a session without TLS. And
what it shows, as files: the pages of the tour through it (docs/dashboard.md).
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.dashboard.browser import DESKTOP, PHONE, chromium, installed
from tests.dashboard.site import session
from tests.testbed.site import Site
from understudy_controlplane.fleet.identity import Role

LIVE = "document.getElementById('link').dataset.state === 'live'"
DRAWN = "document.querySelector('svg.heat') !== null"
CHUNK_BYTES = 65_536


@contextmanager
def forwarded(site: Site) -> Iterator[str]:
    """The address here, from which every connection is passed on to the control plane."""
    there = urlsplit(site.url)

    class PassOn(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), socket.create_connection((there.hostname, there.port)) as beyond:
                back = threading.Thread(target=_copy, args=(beyond, self.request), daemon=True)
                back.start()
                _copy(self.request, beyond)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), PassOn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://localhost:{server.server_address[1]}"
        finally:
            server.shutdown()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(CHUNK_BYTES):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


def pages_of(site: Site) -> dict[str, str]:
    """Name → path: those of the tour, but the job's, which shows most while it runs."""
    newest = site.items("/v1/recoveries?kind=pool")[0]
    node = newest["nodes"][0]
    incident = site.items(f"/v1/incidents?subject={node}")[0]["id"]
    return {
        "fleet": "",
        "node": f"/nodes/{node}",
        "recovery": f"/recoveries/{newest['id']}",
        "incident": f"/incidents/{incident}",
        "guards": "/guards",
        "reports": "/reports",
    }


def take_screenshots(url: str, folder: Path, pages: Mapping[str, str]) -> list[str]:
    """The names of those that were taken: none, where there is no browser."""
    if installed() is None:
        return []
    with chromium() as browser, browser.tab(url, session(url, Role.OPERATOR)) as tab:
        for name, path in pages.items():
            tab.open(f"/dashboard{path}")
            tab.wait_for(LIVE)
            with suppress(AssertionError):  # a gang may have ended
                tab.wait_for(DRAWN if name == "job" else LIVE, 5)
            tab.screenshot(folder / f"dashboard-{name}.png", whole=name != "reports")
            if name in ("fleet", "node"):
                tab.scheme("dark")
                tab.screenshot(folder / f"dashboard-{name}-dark.png", whole=False)
                tab.resize(PHONE)
                tab.screenshot(folder / f"dashboard-{name}-phone.png", whole=False)
                tab.resize(DESKTOP)
                tab.scheme("light")
    return [*pages]
