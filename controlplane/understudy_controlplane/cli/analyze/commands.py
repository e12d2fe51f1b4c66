"""`understudy analyze`: files after a failure. Needs no control plane and no configuration."""

from __future__ import annotations

import time
from pathlib import Path

import click

from understudy_controlplane.cli.options import config_option, config_or_defaults, driver_option, json_option
from understudy_controlplane.cli.output import Exit, fail, show


@click.group()
def analyze() -> None:
    """Analyze files after a failure; needs no control plane and no configuration."""


@analyze.command("kernel-log")
@click.argument("file")
@config_option
@driver_option
@json_option
def analyze_kernel_log(file: str, config: Path, driver: str, as_json: bool) -> None:
    """Find the driver's events in a kernel log, with a verdict for each and what the control plane would do.

    FILE is what dmesg, journalctl, syslog or a collector of logs wrote, of one machine or of many, also packed; `-` is
    standard input. Best is `journalctl -k -a -o json`, which names machine, time and who wrote each message.
    """
    from understudy_controlplane.cli.analyze import kernel_log
    from understudy_controlplane.cli.analyze.input_file import InputError, opened
    from understudy_controlplane.cli.analyze.log_records import records

    settings = config_or_defaults(config)
    try:
        with opened(file) as content:
            reading = kernel_log.collect(records(content), time.time(), settings.xid.burst_silence_seconds)
    except InputError as error:
        fail(str(error), Exit.USAGE)
    analysis = kernel_log.analyze(reading, settings, driver)
    show(kernel_log.as_record(analysis), as_json, lambda _: kernel_log.lines(analysis))


@analyze.command("steps")
@click.argument("file")
@config_option
@json_option
def analyze_steps(file: str, config: Path, as_json: bool) -> None:
    """Find slow ranks in step times, as the control plane would.

    FILE is CSV with a header, plain or gzip; `-` is standard input. Columns: step, rank, self_seconds (or
    forward_seconds and backward_seconds), and role or stage, dp_rank and work where known; others are ignored.
    """
    from understudy_controlplane.cli.analyze import step_times

    policy = config_or_defaults(config).straggler
    try:
        analysis = step_times.analyze_steps(file, policy)
    except step_times.AnalyzeError as error:
        fail(str(error), Exit.USAGE)
    show(analysis.as_record(file, policy), as_json, lambda _: step_times.lines(analysis))


@analyze.command("hang")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def analyze_hang(files: tuple[Path, ...], as_json: bool) -> None:
    """Find the ranks that held up a gang, from files of PyTorch's flight recorder, as the control plane would.

    FILES are those of all ranks, or their folder: what PyTorch's watchdog wrote after a time-out, to the path in
    TORCH_FR_DUMP_TEMP_FILE (before: TORCH_NCCL_DEBUG_INFO_TEMP_FILE) followed by the rank.
    """
    from understudy_controlplane.cli.analyze import recorder_files

    try:
        analysis = recorder_files.analyze_hang(files)
    except recorder_files.RecorderFileError as error:
        fail(str(error), Exit.USAGE)
    show(analysis.as_record(), as_json, lambda _: recorder_files.lines(analysis))


@analyze.command("collectives")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def analyze_collectives(files: tuple[Path, ...], as_json: bool) -> None:
    """Find communicators that are slower than their peers, from files of NCCL Inspector.

    FILES are those of all processes, or their folder, NCCL_INSPECTOR_DUMP_DIR. A slow rail, node or pair is named.
    """
    from understudy_controlplane.cli.analyze import inspector_files

    try:
        analysis = inspector_files.analyze_collectives(files)
    except inspector_files.InspectorFileError as error:
        fail(str(error), Exit.USAGE)
    show(analysis.as_record(), as_json, lambda _: inspector_files.lines(analysis))
