"""`understudy pause` and `resume`."""

from __future__ import annotations

import click

from understudy_controlplane.cli.requests import for_option, request_command
from understudy_controlplane.cli.subjects import FLEET

pause = request_command(
    "pause",
    """Pause the control plane: it begins nothing, and stops recoveries before their next effect.

    A gang that has left its nodes is still started again, unless --now is given.
    """,
    "/v1/pause",
    FLEET,
    click.option("--now", is_flag=True, default=None, help="Halt what is under way, also between two attempts."),
    for_option("Resume after this time, such as 2h."),
)
resume = request_command("resume", "End a pause.", "/v1/resume")
