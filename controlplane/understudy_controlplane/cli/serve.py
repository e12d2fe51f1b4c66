"""`understudy serve`: the control plane."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from understudy_controlplane.cli.options import config_of, config_option
from understudy_controlplane.cli.output import Exit, fail


@click.command()
@config_option
def serve(config: Path) -> None:
    """Run the control plane."""
    gc.disable()  # what is imported stays: searching it for cycles takes a sixth of the start
    from understudy_controlplane.config import ConfigError
    from understudy_controlplane.serve import LeadLost
    from understudy_controlplane.serve import serve as run

    gc.enable()

    try:
        run(config_of(config), config)
    except ConfigError as error:
        fail(str(error), Exit.USAGE)
    except LeadLost as error:
        fail(str(error), Exit.FAILED)
