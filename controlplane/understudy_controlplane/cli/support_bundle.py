"""`understudy support-bundle`: what an expert needs to understand an incident, in one archive, without secrets."""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.options import config_of, config_option, json_option
from understudy_controlplane.cli.output import Exit, fail, note, show
from understudy_controlplane.fleet.durations import DAY_SECONDS

if TYPE_CHECKING:
    from understudy_controlplane.config import Config
    from understudy_controlplane.store.database import Engine

PAGE = 1000
RECORDS_MAX = 200_000
READ_SECONDS_MAX = 60.0


@click.command("support-bundle")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--since", type=PAST, help="From then on: 2h for two hours ago, or a time in UTC.  [default: a day ago]")
@click.option("--until", type=PAST, help="Until then.  [default: now]")
@config_option
@json_option
def support_bundle(file: Path, since: float | None, until: float | None, config: Path, as_json: bool) -> None:
    """Write versions, configuration without secrets, Slurm's settings, decisions, incidents, recoveries, the audit and
    the journal of a time to a new FILE (tar.gz). Run it on the control plane's host, as root.
    """
    loaded = config_of(config)  # first: without it no file is left behind
    now = time.time()
    end = now if until is None else until
    begin = end - DAY_SECONDS if since is None else since
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        fail(f"{file}: cannot be written: {error.strerror}; name a file that does not exist yet", Exit.USAGE)
    sizes: dict[str, int] = {}
    with os.fdopen(descriptor, "wb") as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in contents(loaded, begin, end):
            entry = tarfile.TarInfo(f"understudy-support/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(now), 0o600
            archive.addfile(entry, io.BytesIO(content))
            sizes[name] = len(content)
    lines = [f"{name}: {size} bytes" for name, size in sizes.items()]
    show({"file": str(file), "bytes": sizes}, as_json, lambda _: lines)
    note(f"{file}: written. It names nodes, users and jobs; look at it before you send it.")


def contents(config: Config, since: float, until: float) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file. One that cannot be had says why."""
    parts: dict[str, Callable[[], bytes]] = {
        "versions.json": lambda: _json(versions()),
        "config.json": lambda: _json(without_secrets_of(config)),
        "slurm.json": lambda: _json(_slurm(config)),
        "database.txt": lambda: _database(config.server.database).encode(),
        "decisions.jsonl": lambda: _read(config, lambda engine: _decisions(engine, since, until)),
        "incidents.jsonl": lambda: _read(config, lambda engine: _incidents(engine, since, until)),
        "recoveries.jsonl": lambda: _read(config, lambda engine: _recoveries(engine, since, until)),
        "audit.jsonl": lambda: _read(config, lambda engine: _audit(engine, since, until)),
        "journal.txt": lambda: _journal(since, until),
    }
    for name, make in parts.items():
        try:
            yield name, make()
        except Exception as error:  # noqa: BLE001 - what is broken is what the bundle is for
            yield name, f"cannot be had: {type(error).__name__}: {error}\n".encode()


def versions() -> dict[str, Any]:
    from importlib.metadata import distributions

    packages = {one.metadata["Name"]: one.version for one in distributions()}
    return {"python": sys.version, "system": platform.platform(), "packages": dict(sorted(packages.items()))}


def without_secrets_of(config: Config) -> dict[str, Any]:
    from understudy_controlplane.store.database import without_secrets

    shown = config.model_dump(mode="json")
    shown["server"]["database"] = without_secrets(config.server.database)
    return shown


def _slurm(config: Config) -> dict[str, str]:
    from understudy_controlplane.slurm.cli import CommandLineGateway

    settings = CommandLineGateway(config.slurm.scontrol, None, config.slurm.timeout_seconds).config()
    return {name: "***" if "pass" in name.lower() else value for name, value in settings.items()}


def _database(url: str) -> str:
    from understudy_controlplane.store.database import look_at, without_secrets
    from understudy_controlplane.store.maintenance import problems

    return "\n".join([f"{without_secrets(url)}: {look_at(url)}", *problems(url), ""])


def _read(config: Config, records: Callable[[Engine], Iterable[Any]]) -> bytes:
    """Lines of JSON. Nothing in the database is changed."""
    from understudy_controlplane.store.database import open_reader

    engine = open_reader(config.server.database, 1, READ_SECONDS_MAX)
    try:
        return b"".join(msgspec.json.encode(one) + b"\n" for one in records(engine))
    finally:
        engine.dispose()


def _decisions(engine: Engine, since: float, until: float) -> Iterator[dict[str, Any]]:
    from understudy_controlplane.store.queries import DecisionFilter, Queries

    queries, only = Queries(engine), DecisionFilter(since=since, until=until)
    page = queries.decisions(PAGE, only=only)
    for _ in range(RECORDS_MAX // PAGE):
        yield from page
        if len(page) < PAGE:
            return
        page = queries.decisions(PAGE, page[-1]["id"], only)


def _incidents(engine: Engine, since: float, until: float) -> Iterator[dict[str, Any]]:
    """The newest, those that were open in this time."""
    from understudy_controlplane.store.queries import Queries

    for one in Queries(engine).incidents(PAGE):
        if one["opened_at"] < until and (one["closed_at"] is None or one["closed_at"] >= since):
            yield one


def _recoveries(engine: Engine, since: float, until: float) -> Iterator[object]:
    from understudy_controlplane.store.recoveries import RecoveryStore

    for one in RecoveryStore(engine).newest(PAGE):
        if one.decided_at < until and (one.ended_at is None or one.ended_at >= since):
            yield msgspec.to_builtins(one)


def _audit(engine: Engine, since: float, until: float) -> Iterator[dict[str, Any]]:
    from understudy_controlplane.store.audit import entries

    return (one for one in entries(engine, since) if one["at"] < until)


def _journal(since: float, until: float) -> bytes:
    from understudy_controlplane.service_log import journal

    return journal(since, until).encode()


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"
