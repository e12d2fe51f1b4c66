"""What is known of a job's checkpoints: which are complete, and what speaks against them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Row,
    Select,
    and_,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.job import (
    OBJECT,
    Attempt,
    Checkpoint,
    Condition,
    FirstNan,
    JobKey,
    MeasuredCheckpoint,
    Save,
    StoredAnomaly,
    StoredRestoreReport,
    WrittenCheckpoint,
    WrongResult,
    tier_of,
)
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import reading
from understudy_controlplane.store.facts import GOES_ON, OF_CHECKPOINT
from understudy_controlplane.store.fleet import of_job, rows_of_job
from understudy_controlplane.store.shard_map import Shard, shards_of_row, unpack
from understudy_wire.facts import AnomalyKind, Layout, RestoreOutcome, Tier

WRITTEN_OVER_WHY = "a later checkpoint has written its files"

EXPIRED_WHY = "its job keeps it no longer"

MEASURED_MAX = 10
"""Checkpoints from which it is seen how often a job saves, and what that costs."""

DOUBTS = (Condition.SUSPECT, Condition.BAD, Condition.LOST)
"""A person may know better."""

NAN_KINDS = (AnomalyKind.LOSS_NAN, AnomalyKind.GRAD_NORM_NAN)

OF_WRITE = ("job", "restart_count", "launch", "step")
"""What has written a file: one checkpoint, of one attempt."""

_NEWS = (tables.checkpoint_shard, tables.anomaly, tables.anomaly_clearance, tables.restore_report)


def _first_nans() -> Select[Any]:
    table, attempt = tables.anomaly, tables.attempt
    of_attempt = (table.c.job, table.c.restart_count, table.c.launch)
    shown = (table.c.kind.in_([kind.value for kind in NAN_KINDS]), table.c.received_at >= bindparam("since"))
    first = select(*of_attempt, func.min(table.c.step).label("step")).where(*shown).group_by(*of_attempt).subquery()
    return (
        select(
            tables.job.c.cluster,
            tables.job.c.job_id,
            tables.job.c.submit_at,
            table.c.restart_count,
            table.c.launch,
            table.c.step,
            table.c.node,
            attempt.c.nodes,
            func.min(table.c.rank).label("rank"),
            func.min(table.c.received_at).label("received_at"),
        )
        .join(first, and_(*(column == first.c[column.name] for column in (*of_attempt, table.c.step))))
        .join(tables.job, tables.job.c.id == table.c.job)
        .join(
            attempt,
            and_(
                attempt.c.job == table.c.job,
                attempt.c.restart_count == table.c.restart_count,
                attempt.c.launch == 0,
            ),
        )
        .where(*shown)
        .group_by(tables.job.c.id, *of_attempt, table.c.step, table.c.node, attempt.c.id)
    )


_FIRST_NANS = _first_nans()


def _wrong_results() -> Select[Any]:
    table, job = tables.anomaly, tables.job
    columns = (job.c.cluster, job.c.job_id, job.c.submit_at, table.c.node, table.c.rank, table.c.step)
    return (
        select(*columns, table.c.received_at)
        .join(job, job.c.id == table.c.job)
        .where(table.c.kind == AnomalyKind.RECOMPUTE_DIFFERS.value, table.c.received_at >= bindparam("since"))
    )


_WRONG_RESULTS = _wrong_results()


def _anomalies() -> Select[Any]:
    table, clearance = tables.anomaly, tables.anomaly_clearance
    cleared = select(func.max(clearance.c.at)).where(clearance.c.job == table.c.job).scalar_subquery()
    return rows_of_job(table).where(table.c.received_at > func.coalesce(cleared, 0.0)).order_by(table.c.until)


_ANOMALIES = _anomalies()


class CheckpointStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def complete_checkpoints(self, job: JobKey, run: Sequence[int] = ()) -> list[Checkpoint]:
        """Checkpoints of which every rank of one attempt announced its shard, all under one path; with their condition,
        as where a file was written again since. How many ranks there are comes from the start of the gang, not from
        the shards. `run` are the rows of other jobs of its run, which may have written over them.
        """
        query = rows_of_job(tables.checkpoint).order_by(tables.checkpoint.c.step)
        complete = query.add_columns(is_complete().label("complete"))
        with reading(self._engine) as connection:
            rows = connection.execute(complete, of_job(job)).all()
            worlds, over = _worlds(connection, job), _written_over(connection, rows, run)
            return [
                _checkpoint(row, job, written_over=row.id in over)
                for row in rows
                if (row.complete and row.world_size == worlds.get((row.restart_count, row.launch)))
                or Condition(row.condition).is_gone
            ]

    def saves(self, job: JobKey) -> list[Save]:
        """Those of the complete checkpoints, by their time. Nothing else of them is read: a job has many."""
        table = tables.checkpoint
        columns = (table.c.restart_count, table.c.launch, table.c.world_size, table.c.step, table.c.at)
        query = rows_of_job(table).with_only_columns(*columns, maintain_column_froms=True).where(is_complete())
        with reading(self._engine) as connection:
            worlds = _worlds(connection, job)
            return [
                Save(Attempt(restart, launch), step, at)
                for restart, launch, world, step, at in connection.execute(query.order_by(table.c.at), of_job(job))
                if world == worlds.get((restart, launch))
            ]

    def ranks_of(self, job: JobKey, attempt: Attempt | None = None) -> int:
        """The size of this attempt's gang, or of the last one that started; 0: not known."""
        with reading(self._engine) as connection:
            worlds = _worlds(connection, job)
        key = max(worlds, default=None) if attempt is None else (attempt.restart_count, attempt.launch)
        return worlds.get(key, 0) if key is not None else 0

    def nodes_of_ranks(self, job: JobKey, attempt: Attempt) -> dict[int, str]:
        """Node on which each rank of this attempt has started last."""
        table = tables.rank_start
        of_attempt = (table.c.restart_count == attempt.restart_count, table.c.launch == attempt.launch)
        query = rows_of_job(table).where(*of_attempt).order_by(table.c.started_at, table.c.id)
        with reading(self._engine) as connection:
            return {row.rank: row.node for row in connection.execute(query, of_job(job))}

    def announced_checkpoints(self, job: JobKey) -> list[Checkpoint]:
        """Checkpoints of which any process of the job announced a shard."""
        with reading(self._engine) as connection:
            return [_checkpoint(row, job) for row in connection.execute(rows_of_job(tables.checkpoint), of_job(job))]

    def unverified(self, since: float, until: float, at_most: int, of_user_max: int) -> list[WrittenCheckpoint]:
        """Complete ones of managed jobs, as they were written, newest first; without those that a person trusts. Of one
        user no more than `of_user_max`.
        """
        table, job, clearance = tables.checkpoint, tables.job, tables.anomaly_clearance
        trusted = exists().where(clearance.c.job == table.c.job, clearance.c.at > table.c.at)
        newest = (table.c.at.desc(), table.c.id.desc())
        place = func.row_number().over(partition_by=job.c.user_id, order_by=newest).label("place")
        found = (
            select(table, job.c.cluster, job.c.job_id, job.c.submit_at, job.c.user_id, place)
            .join(job, job.c.id == table.c.job)
            .where(table.c.at > since, table.c.at < until, table.c.packed, is_complete(), job.c.managed)
            .where(table.c.condition == Condition.AS_WRITTEN.value, ~trusted)
            .subquery()
        )
        order = (found.c.at.desc(), found.c.id.desc())
        query = select(found).where(found.c.place <= of_user_max).order_by(*order).limit(at_most)
        with reading(self._engine) as connection:
            return [_written(row) for row in connection.execute(query)]

    def written(self, rows: Collection[int]) -> list[WrittenCheckpoint]:
        """Checkpoints of these rows whose files are all known."""
        table, job = tables.checkpoint, tables.job
        columns = (table, job.c.cluster, job.c.job_id, job.c.submit_at, job.c.user_id)
        query = select(*columns).join(job, job.c.id == table.c.job).where(table.c.id.in_(rows), table.c.packed)
        with reading(self._engine) as connection:
            return [_written(row) for row in connection.execute(query)]

    def to_copy(self, since: float, until: float, at_most: int) -> list[WrittenCheckpoint]:
        """Newest complete checkpoint of each managed job that names a target and has no copy there: for a shared file
        system, from disks of its nodes, and for an object store.
        """
        table, job, copy = tables.checkpoint, tables.job, tables.checkpoint.alias()
        same = [copy.c[name] == table.c[name] for name in OF_WRITE]
        is_there = copy.c.condition.in_([one.value for one in Condition if not one.is_gone])
        copied = exists().where(*same, copy.c.path == table.c.copy_to, is_complete(copy), is_there)
        query = (
            select(table, job.c.cluster, job.c.job_id, job.c.submit_at, job.c.user_id, copied.label("copied"))
            .join(job, job.c.id == table.c.job)
            .where(table.c.at > since, table.c.at < until, table.c.packed, is_complete(), job.c.managed)
            .where(
                or_(
                    and_(table.c.tier == Tier.LOCAL.value, table.c.copy_to != ""),
                    table.c.copy_to.startswith(OBJECT, autoescape=True),
                )
            )
            .where(table.c.condition.in_([Condition.AS_WRITTEN.value, Condition.VERIFIED.value]))
            .order_by(table.c.at.desc(), table.c.id.desc())
            .limit(at_most)
        )
        newest: dict[tuple[int, Tier], Row[Any]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(query):
                newest.setdefault((row.job, tier_of(row.copy_to)), row)
        return [_written(row) for row in newest.values() if not row.copied]

    def other_at(self, one: WrittenCheckpoint) -> str:
        """What else lies where this one is to be copied, in words; empty: nothing."""
        table = tables.checkpoint
        is_there = table.c.condition.in_([one.value for one in Condition if not one.is_gone])
        with reading(self._engine) as connection:
            own = connection.execute(select(*(table.c[name] for name in OF_WRITE)).where(table.c.id == one.row)).first()
            own_jobs = select(tables.job.c.id).where(tables.job.c.user_id == one.user_id)
            same_user = table.c.job.in_(own_jobs)  # anyone may announce a checkpoint at any path
            query = select(table).where(same_user, table.c.path == one.copy_to, is_complete(), is_there)
            for row in connection.execute(query):
                if own is None or tuple(own) != tuple(getattr(row, name) for name in OF_WRITE):
                    return f"the checkpoint of step {row.step}"
        return ""

    def newest_at(self, job_row: int, tier: Tier) -> float | None:
        """When the newest complete one of a job on this tier was written; None: there is none."""
        table = tables.checkpoint
        query = select(func.max(table.c.at)).where(table.c.job == job_row, table.c.tier == tier.value, is_complete())
        with reading(self._engine) as connection:
            at: float | None = connection.execute(query).scalar()
        return at

    def add_copy(self, checkpoint: int) -> bool:
        """All its files are where it was to be copied, too: one of the same time. False: it is gone meanwhile."""
        table, packed = tables.checkpoint, tables.checkpoint_map
        with self._engine.begin() as connection:
            row = connection.execute(select(table).where(table.c.id == checkpoint)).mappings().first()
            shards = connection.execute(select(packed.c.shards).where(packed.c.checkpoint == checkpoint)).scalar()
            if row is None or shards is None or Condition(row["condition"]).is_gone:
                return False
            copy = {name: row[name] for name in (*OF_WRITE, "world_size", "shards", "size_bytes", "layout", "at")}
            copy |= {"path": row["copy_to"], "packed": True, "tier": tier_of(row["copy_to"]).value}
            copy |= {"copy_to": row["then_copy_to"]}
            same = [table.c[name] == copy[name] for name in (*OF_WRITE, "path", "world_size")]
            old = connection.execute(select(table.c.id).where(*same)).scalar()
            if old is not None:  # it was lost, and is there again
                again = {"condition": Condition.AS_WRITTEN.value, "condition_why": ""}
                connection.execute(update(table).where(table.c.id == old).values(again))
                return True
            number = connection.execute(insert(table).values(copy).returning(table.c.id)).scalar_one()
            connection.execute(insert(packed).values(checkpoint=number, packed_through=0, shards=shards))
            return True

    def shards(self, checkpoint: int) -> list[Shard]:
        """Shards of a row of the table `checkpoint`; none: it is gone."""
        with reading(self._engine) as connection:
            row = connection.execute(select(tables.checkpoint).where(tables.checkpoint.c.id == checkpoint)).first()
            return [] if row is None else shards_of(connection, row)

    def set_condition(self, checkpoint: int, condition: Condition, why: str) -> None:
        """Unless something else was found of it meanwhile."""
        self._change(checkpoint, (Condition.AS_WRITTEN, Condition.SUSPECT), condition, why)

    def expire(self, checkpoint: int, why: str) -> bool:
        """Marks it as not restorable from now on. False: something was found of it meanwhile."""
        good = (Condition.AS_WRITTEN, Condition.VERIFIED)
        return self._change(checkpoint, good, Condition.EXPIRED, why)

    def note_deleted(self, checkpoint: int) -> None:
        """Its files are gone."""
        self._change(checkpoint, (Condition.EXPIRED,), Condition.DELETED, EXPIRED_WHY)

    def _change(self, checkpoint: int, before: Sequence[Condition], condition: Condition, why: str) -> bool:
        table = tables.checkpoint
        found = update(table).where(table.c.id == checkpoint, table.c.condition.in_([one.value for one in before]))
        with self._engine.begin() as connection:
            changed = connection.execute(found.values(condition=condition.value, condition_why=why))
            return changed.rowcount > 0

    def measured(self, job: JobKey, at_most: int = MEASURED_MAX) -> list[MeasuredCheckpoint]:
        """The newest complete ones of a job, of each tier so many, newest first."""
        table = tables.checkpoint
        newest_first = rows_of_job(table).where(is_complete()).order_by(table.c.at.desc(), table.c.id.desc())
        with reading(self._engine) as connection:
            rows = [
                row
                for tier in ("", *(one.value for one in Tier if one is not Tier.UNKNOWN))
                for row in connection.execute(newest_first.where(table.c.tier == tier).limit(at_most), of_job(job))
            ]
        copies = {row.copy_to for row in rows if row.copy_to}
        return [
            MeasuredCheckpoint(
                Attempt(row.restart_count, row.launch),
                row.step,
                row.at,
                row.world_size,
                row.blocked_seconds,
                row.write_seconds,
                _tier(row),
                row.size_bytes,
                row.path in copies or row.tier == Tier.OBJECT.value,
            )
            for row in sorted(rows, key=lambda row: (-row.at, -row.id))
        ]

    def restore_reports(self, job: JobKey) -> list[StoredRestoreReport]:
        query = rows_of_job(tables.restore_report).order_by(tables.restore_report.c.id)
        with reading(self._engine) as connection:
            return [
                StoredRestoreReport(
                    job,
                    Attempt(row.restart_count, row.launch),
                    row.rank,
                    row.node,
                    row.step,
                    row.path,
                    RestoreOutcome(row.outcome),
                    row.error,
                    row.received_at,
                )
                for row in connection.execute(query, of_job(job))
            ]

    def newest(self) -> list[int]:
        """The newest ids of shards, anomalies, clearances and reports of restores."""
        with reading(self._engine) as connection:
            return [connection.execute(select(func.max(table.c.id))).scalar() or 0 for table in _NEWS]

    def checkpoint_news(self, after: Sequence[int]) -> tuple[list[int], set[int]]:
        """The newest ids, as above, and the jobs (rows) of what came after the given ones."""
        jobs: set[int] = set()
        newest = []
        with reading(self._engine) as connection:
            for table, last in zip(_NEWS, after, strict=True):
                query = select(table.c.job, func.max(table.c.id)).where(table.c.id > last).group_by(table.c.job)
                found = [(job, identifier) for job, identifier in connection.execute(query)]
                jobs |= {job for job, _ in found}
                newest.append(max((identifier for _, identifier in found), default=last))
        return newest, jobs

    def anomalies(self, jobs: Iterable[JobKey]) -> list[StoredAnomaly]:
        """Anomalies of these jobs since the user last trusted their checkpoints; ended ones are marked."""
        found: dict[tuple[Any, ...], StoredAnomaly] = {}
        with reading(self._engine) as connection:
            for key in dict.fromkeys(jobs):
                for row in connection.execute(_ANOMALIES, of_job(key)):
                    one = _anomaly(row, key)
                    found[(key, one.attempt, one.rank, one.kind, one.step)] = one
        return list(found.values())

    def newest_anomaly(self) -> int:
        """Its id; 0: there is none."""
        with reading(self._engine) as connection:
            return connection.execute(select(func.max(tables.anomaly.c.id))).scalar() or 0

    def first_nans(self, since: float) -> tuple[FirstNan, ...]:
        """Places where attempts on several nodes showed NaN first. Includes those whose checkpoints were trusted since:
        that concerns the checkpoints, not the node.
        """
        found: dict[tuple[JobKey, Attempt], FirstNan] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(_FIRST_NANS, {"since": since}):
                key = (JobKey(row.cluster, row.job_id, row.submit_at), Attempt(row.restart_count, row.launch))
                before = found.get(key)
                found[key] = FirstNan(
                    *key,
                    row.step,
                    (*(before.nodes if before else ()), row.node),
                    min(row.rank, before.rank) if before else row.rank,
                    min(row.received_at, before.received_at) if before else row.received_at,
                    len(set(row.nodes)) > 1,
                )
        return tuple(found.values())

    def wrong_results(self, since: float) -> tuple[WrongResult, ...]:
        """Steps that were computed again since then, and gave another result."""
        with reading(self._engine) as connection:
            return tuple(
                WrongResult(
                    JobKey(row.cluster, row.job_id, row.submit_at), row.node, row.rank, row.step, row.received_at
                )
                for row in connection.execute(_WRONG_RESULTS, {"since": since})
            )


def trust(job_row: int, connection: Connection, entry: AuditEntry) -> bool:
    """A person trusts the job's checkpoints: nothing known up to now makes them suspect."""
    clearance = {"job": job_row, "at": entry.at, "reason": entry.reason, "by": entry.who}
    connection.execute(insert(tables.anomaly_clearance).values(clearance))
    found = tables.checkpoint.c.condition.in_([one.value for one in DOUBTS])
    again = update(tables.checkpoint).where(tables.checkpoint.c.job == job_row, found)
    connection.execute(again.values(condition=Condition.AS_WRITTEN.value, condition_why=""))
    return True


def is_complete(table: FromClause = tables.checkpoint) -> ColumnElement[bool]:
    """Every rank's shard is in."""
    return table.c.shards >= table.c.world_size


def _worlds(connection: Connection, job: JobKey) -> dict[tuple[int, int], int]:
    """Restart count and launch → the size of the world in which most ranks started, of two the larger: a single process
    that the job starts besides its gang has a world of its own.
    """
    rows = connection.execute(rows_of_job(tables.gang_world), of_job(job))
    found = sorted(rows, key=lambda row: (row.ranks, row.world_size))
    return {(row.restart_count, row.launch): row.world_size for row in found}


def _written_over(connection: Connection, rows: Sequence[Row[Any]], run: Sequence[int]) -> set[int]:
    """Those of a job's checkpoints of which another checkpoint has written a file since, in whole or in part."""
    checkpoint = tables.checkpoint
    sharing: dict[str, list[Row[Any]]] = {}
    for row in rows:
        sharing.setdefault(row.path, []).append(row)
    if len(run) > 1:
        own = {row.job for row in rows}
        others = select(checkpoint).where(checkpoint.c.job.in_([one for one in run if one not in own]))
        for row in connection.execute(others):
            if row.path in sharing:
                sharing[row.path].append(row)
    over: set[int] = set()
    for same in sharing.values():
        left = [row for row in same if not _is_settled(row)]
        if len(left) > 1:  # with a path for each checkpoint: never
            over |= over_on_one_path(connection, left)
    return over


def _is_settled(row: Row[Any]) -> bool:
    """It was written over, and what it wrote over itself is recorded with those: see `store.packing`."""
    return bool(row.packed) and row.condition == Condition.WRITTEN_OVER.value


def over_on_one_path(connection: Connection, rows: Sequence[Row[Any]]) -> set[int]:
    """Those that are not the last to have written each of their files. Other worlds of the same attempt and step are
    announcements of the same files.
    """
    writer: dict[str, tuple[int, tuple[Any, ...]]] = {}
    files: dict[int, list[str]] = {}
    for row in rows:
        write = tuple(getattr(row, name) for name in OF_WRITE)
        shards = [one for one in shards_of(connection, row) if one.file]
        files[row.id] = [one.file for one in shards]
        for one in shards:
            known = writer.get(one.file)
            if known is None or one.order > known[0]:
                writer[one.file] = (one.order, write)
    return {
        row.id
        for row in rows
        if any(writer[file][1] != tuple(getattr(row, name) for name in OF_WRITE) for file in files[row.id])
    }


def shards_of(connection: Connection, row: Row[Any]) -> list[Shard]:
    """Shards of a row of `checkpoint`, from its map and those not packed yet. The first announcement of a rank counts:
    it may repeat itself.
    """
    table, packed = tables.checkpoint_shard, tables.checkpoint_map
    found = connection.execute(select(packed.c.shards).where(packed.c.checkpoint == row.id)).scalar()
    shards = unpack(found) if found is not None else []
    if not row.packed:
        known = {one.rank for one in shards}
        for one in connection.execute(select(table).where(*of_row(row)).order_by(table.c.id)).mappings():
            if one["rank"] not in known:
                shards += shards_of_row(dict(one))
    return shards


def of_row(row: Row[Any]) -> list[ColumnElement[bool]]:
    """Conditions that select the rows of `checkpoint_shard` of this row of `checkpoint`."""
    table = tables.checkpoint_shard
    return [*(table.c[name] == getattr(row, name) for name in OF_CHECKPOINT), table.c.rank < row.world_size]


def _written(row: Row[Any]) -> WrittenCheckpoint:
    key = JobKey(row.cluster, row.job_id, row.submit_at)
    return WrittenCheckpoint(row.id, row.job, key, row.user_id, row.path, row.at, row.copy_to, _tier(row))


def _tier(row: Row[Any]) -> Tier:
    return Tier(row.tier or "unknown")


def _checkpoint(row: Row[Any], job: JobKey, written_over: bool = False) -> Checkpoint:
    condition, why = Condition(row.condition), row.condition_why
    if written_over and not condition.is_gone:
        condition, why = Condition.WRITTEN_OVER, WRITTEN_OVER_WHY
    attempt = Attempt(row.restart_count, row.launch)
    return Checkpoint(
        job,
        row.step,
        row.path,
        row.world_size,
        row.at,
        attempt,
        condition,
        why,
        Layout(row.layout or "unknown"),
        _tier(row),
        row.id,
    )


def _anomaly(row: Row[Any], job: JobKey) -> StoredAnomaly:
    return StoredAnomaly(
        row.id,
        job,
        Attempt(row.restart_count, row.launch),
        row.node,
        row.rank,
        row.world_size,
        AnomalyKind(row.kind),
        row.step,
        None if row.until == GOES_ON else row.until,
        row.value,
        row.received_at,
    )
