"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.output import Exit, fail

if TYPE_CHECKING:
    from understudy_controlplane.config import Config

DEFAULT_CONFIG = Path("/etc/understudy/controlplane.toml")

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, readable=False),  # the message of the command names a remedy
    default=DEFAULT_CONFIG,
    show_default=True,
    help="The control plane's configuration file.",
)
driver_option = click.option("--driver", default="", help="Version of NVIDIA's driver, such as 550.54.15.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def config_of(path: Path) -> Config:
    """Ends the command where it cannot be used."""
    from understudy_controlplane.config import ConfigError, load_config

    try:
        return load_config(path)
    except ConfigError as error:
        fail(str(error), Exit.USAGE)


def config_or_defaults(path: Path) -> Config:
    """The site's configuration, or the defaults where there is no file at the default path."""
    from understudy_controlplane.config import Config

    return config_of(path) if path != DEFAULT_CONFIG or path.exists() else Config(cluster="none")
