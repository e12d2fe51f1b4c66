"""`understudy check-config`: whether the control plane can use its configuration on this host."""

from __future__ import annotations

from pathlib import Path

import click

from understudy_controlplane.cli.options import config_of, config_option


@click.command("check-config")
@config_option
def check_config(config: Path) -> None:
    """Check the configuration file."""
    loaded = config_of(config)
    click.echo(f"{config}: valid. Cluster {loaded.cluster}, mode {loaded.mode.value}.")
