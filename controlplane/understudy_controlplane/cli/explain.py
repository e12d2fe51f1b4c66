"""`understudy explain`: why something was done, or was not; and what a code means."""

from __future__ import annotations

from pathlib import Path

import click

from understudy_controlplane.cli.explained_subject import lines
from understudy_controlplane.cli.listing import show_command
from understudy_controlplane.cli.options import config_option, config_or_defaults, driver_option, json_option
from understudy_controlplane.cli.output import show
from understudy_controlplane.cli.subjects import JOB, NODE

code_argument = click.argument("code", type=int)

explain = click.Group(
    "explain",
    help="Explain what the control plane did about a node or job, and why; or what a code means and what follows.",
    commands=[
        show_command(
            "node",
            "What a node is now, and why: incidents, recoveries, requests, and decisions, with what guards held back.",
            "/v1/explain/nodes/{}",
            NODE,
            lines=lines,
        ),
        show_command("job", "The same of a job.", "/v1/explain/jobs/{}", JOB, lines=lines),
    ],
)


@explain.command("xid")
@code_argument
@config_option
@driver_option
@json_option
def explain_xid(code: int, config: Path, driver: str, as_json: bool) -> None:
    """Explain an Xid of the driver: class, repair, exceptions, and source."""
    _print("xid", code, config, driver, as_json)


@explain.command("sxid")
@code_argument
@config_option
@json_option
def explain_sxid(code: int, config: Path, as_json: bool) -> None:
    """Explain an SXid of an NVSwitch."""
    _print("sxid", code, config, "", as_json)


def _print(kind: str, code: int, config: Path, driver: str, as_json: bool) -> None:
    from understudy_controlplane.cli.explained_code import explain_code, lines

    explanation = explain_code(kind, code, config_or_defaults(config).xid, driver)
    show(explanation.record, as_json, lambda _: lines(explanation))
