"""`understudy observed`: what each rule would have done while the control plane only observed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.output import print_json, table_lines

if TYPE_CHECKING:
    from understudy_client import Client, RuleRecord


@click.command()
@click.option("--since", type=PAST, help="Only later decisions: 7d for a week ago, or a time in UTC; else 30 days.")
@connected
def observed(client: Client, as_json: bool, since: float | None) -> None:
    """Print for each rule what it would have done, how often people agreed, and whether it is ready for mode act.

    Answer with `understudy decision agree` or `disagree`. Who drains the node within a day agrees as well.
    """
    if as_json:
        print_json(client.get("/v1/observed", dict, since=since))
        return
    from understudy_client import Observed

    found = client.get("/v1/observed", Observed, since=since)
    click.echo("\n".join(record_lines(found.rules)) if found.rules else "no rule would have acted")


def record_lines(rules: Iterable[RuleRecord]) -> list[str]:
    return table_lines(
        ("rule", "cases", "agreed", "disagreed", "precision", "ready for act"),
        (
            (
                one.rule,
                one.cases,
                one.agreed,
                one.disagreed,
                "" if one.precision is None else f"{one.precision:.0%}",
                "yes" if one.ready else "no",
            )
            for one in rules
        ),
    )
