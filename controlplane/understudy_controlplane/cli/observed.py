"""`understudy observed`: what each rule would have done while the control plane only observed."""

from __future__ import annotations

import click

from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.listing import Listing, show_command
from understudy_controlplane.cli.subjects import FLEET

RULES = Listing(
    "/v1/observed",
    {
        "rule": "rule",
        "cases": "cases",
        "agreed": "agreed",
        "disagreed": "disagreed",
        "precision": lambda one: "" if one.precision is None else f"{one.precision:.0%}",
        "ready for act": "ready",
    },
)

observed = show_command(
    "observed",
    """Print for each rule how often it would have acted, how often people agreed, and whether it is ready for mode act:
    after three answers, of which 95% agree.

    Answer with `understudy decision agree` or `disagree`. Who drains the node within a day agrees as well. `understudy
    mode set act REASON --dry-run` prints what would be done now.
    """,
    RULES.path,
    FLEET,
    click.option("--since", type=PAST, help="Only later decisions: 7d for a week ago, or a time in UTC; else 30 days."),
    lines=lambda found: RULES.lines(found.rules) if found.rules else ["no rule would have acted"],
)
