"""`understudy db`: the control plane's database is checked, pruned, backed up and copied to PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path

import click

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.options import config_of, config_option, json_option
from understudy_controlplane.cli.output import Exit, fail, show, table_lines

_target = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def db() -> None:
    """The database. Run it on the control plane's host, as its user or root."""


@db.command("check")
@config_option
@json_option
def check(config: Path, as_json: bool) -> None:
    """Check the schema's version, the file's pages and the references between rows. Nothing is changed."""
    from understudy_controlplane.store.database import StoreError, without_secrets
    from understudy_controlplane.store.maintenance import problems

    url = config_of(config).server.database
    try:
        found = problems(url)
    except (OSError, ModuleNotFoundError, StoreError) as error:
        shown = without_secrets(url)
        fail(f"database {shown}: cannot be checked: {error}; run this as the control plane's user", Exit.FAILED)
    show({"problems": found}, as_json, lambda _: found or ["the database is whole"])
    if found:
        raise SystemExit(Exit.FAILED)


@db.command("prune")
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@config_option
@json_option
def prune(dry_run: bool, config: Path, as_json: bool) -> None:
    """Delete the records that [retention] lets go, as the control plane does each hour."""
    from understudy_controlplane.clock import SystemClock
    from understudy_controlplane.pruner import Pruner
    from understudy_controlplane.store.retention import RetentionStore

    retention = config_of(config).retention
    with opened(config) as engine:
        pruner = Pruner(RetentionStore(engine), lambda: retention, SystemClock())
        deleted = pruner.count() if dry_run else pruner.prune(time.sleep)
    columns = ("table", "would be deleted" if dry_run else "deleted")
    lines = table_lines(columns, sorted(deleted.items())) if deleted else ["no record is old enough"]
    show({"dry_run": dry_run, "rows": deleted}, as_json, lambda _: lines)


@db.command("backup")
@_target
@config_option
@json_option
def backup(file: Path, config: Path, as_json: bool) -> None:
    """Copy the database to a new FILE, as it is at one moment. The control plane goes on meanwhile."""
    from understudy_controlplane.store.database import StoreError
    from understudy_controlplane.store.maintenance import CannotCopy, copy_sqlite

    try:
        size = copy_sqlite(config_of(config).server.database, file)
    except CannotCopy as error:
        fail(f"no backup was written: {error}", Exit.FAILED)
    except (OSError, StoreError) as error:
        fail(f"{file}: no backup was written: {error}; name a file in a folder that you may write", Exit.FAILED)
    show({"file": str(file), "bytes": size}, as_json, lambda _: [f"{file}: {size} bytes"])


@db.command("copy")
@click.option("--to", "target", required=True, metavar="URL", help="An empty database of PostgreSQL.")
@config_option
@json_option
def copy(target: str, config: Path, as_json: bool) -> None:
    """Copy the database from SQLite to PostgreSQL. The control plane must not run meanwhile."""
    from understudy_controlplane.store.copy_to_postgresql import copy_to_postgresql
    from understudy_controlplane.store.database import StoreError, without_secrets
    from understudy_controlplane.store.maintenance import CannotCopy

    try:
        copied = copy_to_postgresql(config_of(config).server.database, target)
    except CannotCopy as error:
        fail(f"nothing was copied: {error}", Exit.FAILED)
    except (OSError, ModuleNotFoundError, StoreError) as error:
        fail(f"nothing was copied to {without_secrets(target)}: {error}; check both databases", Exit.FAILED)
    rows = [(one.table, one.rows, one.checksum) for one in copied]
    show(
        {"tables": {name: {"rows": count, "checksum": checksum} for name, count, checksum in rows}},
        as_json,
        lambda _: table_lines(("table", "rows", "checksum"), rows),
    )
