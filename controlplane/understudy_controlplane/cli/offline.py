"""Commands that need no control plane: `understudy explain` and `understudy analyze`; and what all commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from understudy_controlplane.config import Config, ConfigError, load_config

DEFAULT_CONFIG = Path("/etc/understudy/controlplane.toml")

explain = typer.Typer(no_args_is_help=True, help="Explain what a code means and what the control plane does about it.")
analyze = typer.Typer(
    no_args_is_help=True, help="Analyze files after a failure; needs no control plane and no configuration."
)
console = Console(highlight=False)
errors = Console(stderr=True, soft_wrap=True)

CodeArgument = Annotated[int, typer.Argument(help="Number of the code.")]
ConfigOption = Annotated[Path, typer.Option("--config", help="The control plane's configuration file.")]
DriverOption = Annotated[str, typer.Option("--driver", help="Version of NVIDIA's driver, such as 550.54.15.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@explain.command("xid")
def explain_xid(
    code: CodeArgument, config: ConfigOption = DEFAULT_CONFIG, driver: DriverOption = "", as_json: JsonOption = False
) -> None:
    """Explain an Xid of the driver: class, repair, exceptions, and source."""
    _explain("xid", code, config, driver, as_json)


@explain.command("sxid")
def explain_sxid(code: CodeArgument, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Explain an SXid of an NVSwitch."""
    _explain("sxid", code, config, "", as_json)


@analyze.command("kernel-log")
def analyze_kernel_log(
    file: Annotated[str, typer.Argument(help="Output of dmesg, journalctl or /dev/kmsg; `-`: standard input.")],
    config: ConfigOption = DEFAULT_CONFIG,
    driver: DriverOption = "",
    as_json: JsonOption = False,
) -> None:
    """Find the driver's events in a kernel log, with a verdict for each and what the control plane would do."""
    from understudy_controlplane.cli.analyze import kernel_log

    settings = _config_or_defaults(config)
    try:
        silence_seconds = settings.xid.burst_silence_seconds
        reading = kernel_log.collect(kernel_log.read_lines(file), kernel_log.this_year(), silence_seconds)
    except kernel_log.LogError as error:
        fail(str(error), 2)
        raise
    analysis = kernel_log.analyze(reading, settings, driver)
    if as_json:
        print_json(kernel_log.as_record(analysis))
    else:
        kernel_log.draw(analysis, console)


@analyze.command("steps")
def analyze_steps(
    file: Annotated[str, typer.Argument(help="CSV file with a header, plain or gzip; `-`: standard input.")],
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Find slow ranks in step times, as the control plane would.

    Columns: step, rank, self_seconds (or forward_seconds and backward_seconds), and role or stage; others are ignored.
    """
    from understudy_controlplane.cli.analyze import step_times

    policy = _config_or_defaults(config).straggler
    try:
        analysis = step_times.analyze_steps(file, policy)
    except step_times.AnalyzeError as error:
        fail(str(error), 2)
        raise
    if as_json:
        print_json(analysis.as_record(file, policy))
    else:
        step_times.draw(analysis, console)


def print_json(value: object) -> None:
    sys.stdout.write(f"{msgspec.json.format(msgspec.json.encode(value), indent=2).decode()}\n")


def fail(message: str, code: int) -> None:
    errors.print(message, highlight=False, markup=False)
    raise typer.Exit(code)


def _explain(kind: str, code: int, config: Path, driver: str, as_json: bool) -> None:
    from understudy_controlplane.cli.explain import draw, explain

    explanation = explain(kind, code, _config_or_defaults(config).xid, driver)
    if as_json:
        print_json(explanation.record)
    else:
        draw(explanation, console)


def _config_or_defaults(path: Path) -> Config:
    """The site's configuration, or the defaults where there is no file at the default path."""
    try:
        return load_config(path) if path != DEFAULT_CONFIG or path.exists() else Config(cluster="none")
    except ConfigError as error:
        fail(str(error), 2)
        raise
