"""`understudy signal`: what other systems of the site report."""

from __future__ import annotations

import click

from understudy_controlplane.cli.listing import Listing, show_command
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import NUMBER

SIGNALS = Listing(
    "/v1/signals",
    {
        "signal": "id",
        "kind": "kind",
        "effect": "effect",
        "targets": lambda one: ", ".join(one.targets),
        "source": "source",
        "since": "at",
        "until": "until",
        "summary": "summary",
    },
)

signal = click.Group(
    "signal",
    help="Signals of other systems of the site: leaks, power, fabric, planned outages.",
    commands=[
        show_command("list", "Those that are live.", SIGNALS.path, lines=lambda found: SIGNALS.lines(found.signals)),
        request_command("end", "End a signal that is wrong.", "/v1/signals/{}/end", NUMBER),
    ],
)
