"""Tickets on their way to a real HTTP server: send() does not wait, no ticket is sent twice at once, every answer is
reported.
"""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from understudy_controlplane.notify.webhook import UNDER_WAY_MAX, Webhook


class Site:
    """The site's side: answers with `status`, once `may_answer` is set."""

    def __init__(self) -> None:
        self.status = 204
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.got: list[tuple[str | None, bytes]] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                site.got.append((self.headers["Idempotency-Key"], body))
                site.may_answer.wait(20)
                self.send_response(site.status)
                self.send_header("Content-Length", "7")  # a body that never comes
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/tickets"


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.may_answer.set()
    one.server.shutdown()
    thread.join()
    one.server.server_close()


def answer(webhook: Webhook, label: str) -> str:
    deadline = time.monotonic() + 10
    while (answer_text := webhook.take_answer(label)) is None:
        assert time.monotonic() < deadline, f"no answer about {label}"
        time.sleep(0.01)
    return answer_text


def wait_for(site: Site, requests: int) -> None:
    deadline = time.monotonic() + 10
    while len(site.got) < requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(site.got) == requests


def test_a_ticket_that_is_accepted_is_reported_once(site: Site) -> None:
    webhook = Webhook()
    webhook.send(site.url, {"id": "ticket-1", "node": "n1"})
    assert answer(webhook, "ticket-1") == ""
    assert webhook.take_answer("ticket-1") is None
    assert site.got == [("ticket-1", b'{"id":"ticket-1","node":"n1"}')]


def test_one_that_is_refused_can_be_sent_again(site: Site) -> None:
    webhook = Webhook()
    site.status = 503
    webhook.send(site.url, {"id": "ticket-1"})
    assert answer(webhook, "ticket-1") == "HTTP 503"
    site.status = 200
    webhook.send(site.url, {"id": "ticket-1"})
    assert answer(webhook, "ticket-1") == ""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/", "ConnectError"),
        ("http://127.0.0.1:x/", "InvalidURL"),
        ("ldap://x/", "UnsupportedProtocol"),
    ],
)
def test_a_webhook_that_cannot_be_reached_is_an_answer(url: str, words: str) -> None:
    webhook = Webhook()
    webhook.send(url, {"id": "ticket-1"})
    assert answer(webhook, "ticket-1").startswith(f"{words}: ")


def test_a_webhook_that_does_not_answer_holds_up_no_other_and_gets_each_ticket_once(site: Site) -> None:
    webhook = Webhook()
    site.may_answer.clear()
    begun = time.monotonic()
    labels = [f"ticket-{number}" for number in range(UNDER_WAY_MAX)]
    for label in labels * 2:
        webhook.send(site.url, {"id": label})
    webhook.send(site.url, {"id": "one-more"})
    assert time.monotonic() - begun < 5
    assert webhook.take_answer("one-more") == f"{UNDER_WAY_MAX} others are still unanswered"
    wait_for(site, UNDER_WAY_MAX)
    assert [webhook.take_answer(label) for label in labels] == [None] * UNDER_WAY_MAX
    site.may_answer.set()
    assert [answer(webhook, label) for label in labels] == [""] * UNDER_WAY_MAX
    webhook.send(site.url, {"id": "one-more"})
    assert answer(webhook, "one-more") == ""
    assert len(site.got) == UNDER_WAY_MAX + 1
