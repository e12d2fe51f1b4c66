"""`understudy notify`: whether notifications reach their receivers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.listing import Listing, limit_option, list_command
from understudy_controlplane.cli.options import config_of, config_option, json_option
from understudy_controlplane.cli.output import Check, Exit, end_with, fail

if TYPE_CHECKING:
    from understudy_controlplane.config import Config


MESSAGES = Listing(
    "/v1/notifications",
    {
        "message": "id",
        "to": lambda one: f"{one.receiver} {one.user}".strip(),
        "status": lambda one: one.status.replace("_", " "),
        "accepted": "accepted_at",
        "next try": "next_try_at",
        "title": "title",
        "why not": "error",
    },
)

notify = click.Group(
    "notify",
    help="Notifications to people.",
    commands=[
        list_command(
            "list",
            "The newest messages: sent, waiting, failing, given up.",
            MESSAGES,
            click.option("--status", type=click.Choice(["waiting", "failing", "sent", "given_up"]), help="Only those."),
            click.option("--receiver", help="Only those to this receiver; `owners`: to owners of jobs."),
            limit_option,
        )
    ],
)


@notify.command("test")
@click.argument("receivers", nargs=-1)
@click.option("--user", default="", help="User who gets the test message for owners of jobs.")
@config_option
@json_option
def test(receivers: tuple[str, ...], user: str, config: Path, as_json: bool) -> None:
    """Send a test message to RECEIVERS, or to all: those of the configuration, `heartbeat`, `owners` (with --user).

    Run it on the control plane's host as its user, who may read the files with addresses and keys. Exits with 1 where
    one of them did not accept it.
    """
    loaded = config_of(config)
    known = known_receivers(loaded)
    if unknown := [one for one in receivers if one not in known]:
        fail(f"{unknown[0]} is no receiver; known: {', '.join(known) or 'none, set [notify.receivers]'}", Exit.USAGE)
    if "owners" in receivers and not user:
        fail("owners: no user is named; name one with --user", Exit.USAGE)
    tests = list(tested(loaded, receivers or [one for one in known if one != "owners" or user], user))
    end_with(tests, as_json, Exit.FAILED, "no receiver is configured: set [notify.receivers]")


def known_receivers(config: Config) -> list[str]:
    found = [*config.notify.receivers]
    found += ["heartbeat"] if config.notify.heartbeat_url_file else []
    return found + (["owners"] if config.notify.owners_url_file or config.notify.owners_url_files else [])


def tested(config: Config, receivers: tuple[str, ...] | list[str], user: str) -> Iterator[Check]:
    from understudy_controlplane.config import Importance
    from understudy_controlplane.fleet.notice import Message, Notice, NoticeSource, Stage
    from understudy_controlplane.notify import messages
    from understudy_controlplane.notify.addresses import To, send, send_alerts_to, send_heartbeat
    from understudy_controlplane.notify.alerts import alerts

    now = time.time()
    text = "`understudy notify test` sent this. Nothing has happened."
    notice = Notice(NoticeSource.INCIDENT, 0, Importance.PAGE, Stage.OVER, "a test", text, ("test",), now, over_at=now)
    for name in receivers:
        receiver = config.notify.receivers.get(name)
        if name == "heartbeat":
            error = send_heartbeat(config)
        elif receiver is not None and receiver.kind == "alertmanager":
            error = send_alerts_to(config, name, alerts([notice], config, receiver.least, now))
        else:
            message = Message(name, user, (0,), now, now, revision=1)
            version = messages.shown(message, [notice], config.cluster, config.notify)
            body = {**messages.as_json(message, version, [notice], config.cluster), "id": f"test-{now:.0f}"}
            error = send(config, To(name, user), version, body, now)
        yield Check(name, not error, error or "accepted")
