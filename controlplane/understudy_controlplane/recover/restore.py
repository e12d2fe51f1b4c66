"""The restore point of an attempt: chosen once, the same answer for every rank."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.decide import restore_point
from understudy_controlplane.decide.run_lineage import Lineage, lineage
from understudy_controlplane.decide.shards_elsewhere import Part, strangers
from understudy_controlplane.fleet.job import (
    Attempt,
    Checkpoint,
    KnownJob,
    RankPlace,
    RestoreAnswer,
    RestoreDecision,
    RunJob,
    TrainingRun,
)
from understudy_controlplane.fleet.run_attempts import RunAttempt
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_wire.facts import Layout, RestoreOutcome, Tier

log = structlog.get_logger()


KEPT_MAX = 10_000
"""Restore points in memory."""

LOOK_SECONDS_MAX = 15.0
"""A rank that has not reported within this whether its checkpoint is there may be gone: another one looks."""

STRANGERS_SECONDS_MAX = 30.0
"""Time for nodes that did not write a checkpoint to look whether they see its files."""

RANK_0_SECONDS_MAX = 20.0
"""Time that other ranks' questions wait for the arguments of rank 0, as some options differ from rank to rank. If rank
0 has no hook, another rank's are compared. A hook with an answer of its own waits for a minute.
"""

LOOK_AGAIN_SECONDS = 0.5
"""Each rank of a gang asks meanwhile."""

RUN_ATTEMPTS_MAX = 100

LOOKED_AT_MAX = 64
"""Files of a checkpoint whose size is compared before a gang restores it: more would take long on a slow server."""

NOT_STARTED = "a node whose ranks have not started"

ANY_LATER = Attempt(2**31 - 1)
"""Stands for a decision that is not about one attempt."""


@dataclass(slots=True)
class _OnNodes:
    """Locations on nodes' disks of one attempt's checkpoint and copies, and each rank's fetch list."""

    chosen: Checkpoint
    parts: Mapping[int, Part]  # by rank; of one that lies there alone
    nearer: Sequence[tuple[str, Mapping[int, Part]]]
    asked_at: float
    look_again_at: float = 0.0
    started_at: float | None = None  # when all ranks had, or were waited for; None: not yet
    look_files: dict[str, str] = field(default_factory=dict)  # by node that did not write its ranks' parts
    files: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # in an object store, by rank that needs no more


@dataclass(frozen=True, slots=True)
class RunCheckpoints:
    """Checkpoints of a job and of the jobs that it continues."""

    catalogue: restore_point.Catalogue
    announced: Sequence[Checkpoint]  # by any job of the run, complete or not
    steps_in_use: Set[int]  # that the job's newest attempt restores


class RestorePoints:
    def __init__(self, checkpoints: CheckpointStore, fleet: FleetStore, clock: Clock) -> None:
        self._checkpoints = checkpoints
        self._fleet = fleet
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[int, RestoreDecision] = {}
        self._looked_at: list[int] | None = None  # nothing is kept yet
        self._looking: dict[tuple[int, Attempt], tuple[str, float]] = {}
        """Node that looks whether the attempt's checkpoint is there, and until when it is waited for."""
        self._settled: set[tuple[int, Attempt]] = set()
        self._runs: set[tuple[int, bool]] = set()
        """Jobs whose run is known, without or with the arguments of its program."""
        self._asked_at: dict[int, float] = {}
        """When a rank first asked for a job of which the arguments were not known."""
        self._on_nodes: dict[tuple[int, Attempt], _OnNodes | None] = {}
        self._unseen: dict[tuple[int, Attempt], frozenset[str]] = {}
        """Paths that not all nodes of an attempt see, as far as they have looked."""
        self._ranks: dict[tuple[int, Attempt], int] = {}
        """Size of the gang for which the attempt's restore point was decided, or looked at; 0: it was not known."""

    def newest(self, job: KnownJob) -> RestoreDecision:
        """The restore point of an attempt that would begin now, with a gang of any size; it is not stored. Computed
        again only when there are new shards, or new anomalies.
        """
        with self._lock:
            if self._looked_at is None:
                self._looked_at = self._checkpoints.newest()
            self._looked_at, changed = self._checkpoints.checkpoint_news(self._looked_at)
            for row in changed:
                self._newest.pop(row, None)
            if len(self._newest) > KEPT_MAX:
                self._newest.clear()  # most of these jobs have ended
            if job.row not in self._newest:
                self._newest[job.row] = self._decide(job, ANY_LATER)
            return self._newest[job.row]

    def forget(self) -> None:
        """Something else is known of a job's checkpoints, which any job of its run may continue."""
        with self._lock:
            self._newest.clear()

    def forget_all_but(self, running: Set[int]) -> None:
        """`running`: rows of the jobs that run. What is needed of the attempts of others is in the database."""
        with self._lock:
            of_attempts: tuple[dict[tuple[int, Attempt], Any], ...] = (
                self._looking,
                self._on_nodes,
                self._unseen,
                self._ranks,
            )
            for kept in of_attempts:
                for of_attempt in [one for one in kept if one[0] not in running]:
                    del kept[of_attempt]
            self._settled = {one for one in self._settled if one[0] in running}
            self._runs = {one for one in self._runs if one[0] in running}
            self._asked_at = {row: at for row, at in self._asked_at.items() if row in running}

    def explain(self, job: KnownJob, ranks: int = 0) -> tuple[int, RestoreDecision, list[tuple[Checkpoint, str]]]:
        """What an attempt that would begin now, with a gang of so many ranks, is answered, and what speaks against each
        checkpoint of its run. 0 `ranks`: as many as the job's last gang. Returns how many, too; 0: it is not known.
        """
        ranks = ranks or self._checkpoints.ranks_of(job.key)
        known = self._catalogue(job)
        judged = restore_point.judged(known, job.key, ANY_LATER, ranks)
        return ranks, self._decide_of(known, job, ANY_LATER, ranks), judged

    def of_run(self, job: KnownJob) -> RunCheckpoints | None:
        """None: another job of its run may run as well, or it is not known which jobs it continues."""
        _, jobs = self._fleet.run_jobs(job.row)
        catalogue = self._catalogue(job)
        if catalogue.doubt or any(one.ended_at == inf for one in jobs if one.row != job.row):
            return None
        keys = {job.key, *(one.key for one in jobs)}
        announced = [one for key in keys for one in self._checkpoints.announced_checkpoints(key)]
        restored = self._fleet.last_restore_point(job.row)
        return RunCheckpoints(catalogue, announced, {restored.step} if restored is not None else frozenset())

    def give(self, job: KnownJob, attempt: Attempt, ranks: int = 0) -> RestoreDecision:
        """The first request decides it for all ranks. `ranks` is the size of the gang of the rank that asks; 0: no rank
        asks. What was decided before a rank of the gang asked is decided again if this gang cannot restore it.
        """
        decision, of_attempt = self._fleet.restore_point(job.row, attempt), (job.row, attempt)
        before = self._ranks.get(of_attempt, -1)
        if decision is not None and ranks <= max(before, 0):
            return decision
        ranks = max(ranks, self._checkpoints.ranks_of(job.key, attempt))  # a process beside the gang may ask first
        self._note_ranks(of_attempt, ranks)
        if decision is None:
            made = self._decide(job, attempt, ranks)
            self._fleet.record_restore_point(job.row, attempt, made, self._clock.now())
            return self._stored(job, attempt)
        known = self._catalogue(job)
        if self._stays(decision, known, before, ranks):
            return decision
        other = self._decide_of(known, job, attempt, ranks)
        self._fleet.replace_restore_point(job.row, attempt, decision.path, other, self._clock.now())
        with self._lock:
            self._settled.discard(of_attempt)
            self._looking.pop(of_attempt, None)
            self._on_nodes.pop(of_attempt, None)
        return self._stored(job, attempt)

    def _note_ranks(self, of_attempt: tuple[int, Attempt], ranks: int) -> None:
        with self._lock:
            if len(self._ranks) >= KEPT_MAX:
                self._ranks.clear()
            self._ranks[of_attempt] = ranks

    @staticmethod
    def _stays(decision: RestoreDecision, known: restore_point.Catalogue, before: int, ranks: int) -> bool:
        """True if the decision suits a gang of this size. `before`: the size it was decided for; -1: by an earlier
        process.
        """
        if decision.answer is RestoreAnswer.UNKNOWN:
            return not 0 < before < ranks
        if decision.answer is RestoreAnswer.FRESH:
            return True
        named = [one for one in known.complete if (one.step, one.path) == (decision.step, decision.path)]
        return bool(named) and not any(restore_point.other_size(one.ranks, ranks) for one in named)

    def note_run(self, job: KnownJob, run: TrainingRun, rank: int = 0) -> bool:
        """A rank reports to which run its job belongs, before its first question is answered. False: the rank is to ask
        again, as its job's arguments are those of rank 0, which has not reported them.
        """
        with self._lock:
            if (job.row, bool(run.arguments)) in self._runs:
                return True
        if rank > 0 and run.arguments and not self._fleet.knows_arguments(job.row):
            with self._lock:
                now = self._clock.monotonic()
                waited_seconds = now - self._asked_at.setdefault(job.row, now)
            if waited_seconds < RANK_0_SECONDS_MAX:
                return False
        self._fleet.note_run(job.row, run)
        with self._lock:
            if len(self._runs) >= KEPT_MAX:
                self._runs.clear()
            self._runs.add((job.row, bool(run.arguments)))
        return True

    def looker(self, job: KnownJob, attempt: Attempt, node: str, ranks: int = 0) -> str:
        """The node whose rank is to look whether the checkpoint is there, before any rank of the attempt restores it;
        empty: that is settled. Where it is not there, the next good one is chosen. One node looks for all: on a file
        system that lags, each would see something else. `node` asks, for a gang of so many `ranks`.
        """
        decision = self.give(job, attempt, ranks)
        with self._lock:
            if (job.row, attempt) in self._settled:
                return ""
            while decision.answer is RestoreAnswer.RESTORE:
                looks = self._who_looks(job, attempt, decision, node)
                if looks == "":
                    break
                if looks is not None:
                    return looks
                self._looking.pop((job.row, attempt), None)
                self._on_nodes.pop((job.row, attempt), None)
                other = self._decide(job, attempt, self._ranks.get((job.row, attempt), 0))
                self._fleet.replace_restore_point(job.row, attempt, decision.path, other, self._clock.now())
                decision = self._stored(job, attempt)
            self._looking.pop((job.row, attempt), None)
            if len(self._settled) >= KEPT_MAX:
                self._settled.clear()
            self._settled.add((job.row, attempt))
            return ""

    def place(self, job: KnownJob, attempt: Attempt, rank: int, node: str) -> RankPlace:
        decision = self.give(job, attempt)
        with self._lock:
            on_nodes = self._of_nodes(job, attempt, decision)
        if on_nodes is None:
            return RankPlace()
        files = on_nodes.files.get(rank, ())
        look_file = on_nodes.look_files.get(node, "")
        for path, parts in on_nodes.nearer:
            part = parts.get(rank)
            if part is not None and part.node == node and part.file:
                return RankPlace(look_file, path, part.file, files)
        return RankPlace(look_file, files=files)

    def look_sizes(self, job: KnownJob, attempt: Attempt, node: str) -> dict[str, int]:
        """Bytes of files of the chosen checkpoint that this node may see, for its rank that looks. Not those that two
        ranks have announced with different sizes, nor those in an object store, which fetching compares.
        """
        chosen = self._chosen(self._catalogue(job), self.give(job, attempt))
        if chosen is None or chosen.tier is Tier.OBJECT:
            return {}
        shards = [one for one in self._checkpoints.shards(chosen.row) if one.file]
        seen = [one for one in shards if chosen.tier is not Tier.LOCAL or one.node == node][:LOOKED_AT_MAX]
        sizes = {one.file: one.size_bytes for one in seen}
        return {
            file: size
            for file, size in sizes.items()
            if all(one.size_bytes == size for one in seen if one.file == file)
        }

    @staticmethod
    def _chosen(known: restore_point.Catalogue, decision: RestoreDecision) -> Checkpoint | None:
        same = [one for one in known.complete if (one.step, one.path) == (decision.step, decision.path)]
        return max(same, key=lambda one: one.completed_at, default=None)

    def _who_looks(self, job: KnownJob, attempt: Attempt, decision: RestoreDecision, node: str) -> str | None:
        """The node that is to look; empty: the checkpoint was seen where it has to be; None: not all nodes see it. One
        that lies on disks of nodes has to be seen by a node that did not write its ranks' parts, if there is one.
        """
        reports = self._checkpoints.restore_reports(job.key)
        own = [one for one in reports if (one.attempt, one.path) == (attempt, decision.path)]
        seen_by = {one.node for one in own if one.outcome is RestoreOutcome.SEEN}
        on_nodes = self._of_nodes(job, attempt, decision)
        have_to_look: Mapping[str, str] = {}
        if on_nodes is not None and on_nodes.parts:
            if not self._has_started(on_nodes, job, attempt):
                return NOT_STARTED
            have_to_look = on_nodes.look_files
            seen_by &= have_to_look.keys() or seen_by
        if seen_by:
            return ""
        is_missing = any(one.outcome is RestoreOutcome.MISSING for one in own)
        if (
            on_nodes is not None
            and have_to_look
            and self._clock.monotonic() - on_nodes.asked_at >= STRANGERS_SECONDS_MAX
        ):
            unseen = self._unseen.get((job.row, attempt), frozenset())
            self._unseen[job.row, attempt] = unseen | {decision.path}
            is_missing = True
        if is_missing:
            return None
        return self._choose_looker(
            job, attempt, node if node in have_to_look or not have_to_look else min(have_to_look)
        )

    def _has_started(self, on_nodes: _OnNodes, job: KnownJob, attempt: Attempt) -> bool:
        """All ranks of the gang, or it was waited for them; then it is known which nodes have to look."""
        now = self._clock.monotonic()
        if on_nodes.started_at is None and now >= on_nodes.look_again_at:
            started = self._checkpoints.nodes_of_ranks(job.key, attempt)
            on_nodes.look_again_at = now + LOOK_AGAIN_SECONDS
            on_nodes.look_files = strangers(on_nodes.parts, on_nodes.chosen.layout, started)
            whole = len(started) >= self._ranks.get((job.row, attempt), 0)
            if whole or now - on_nodes.asked_at >= LOOK_SECONDS_MAX:
                on_nodes.started_at = now
        return on_nodes.started_at is not None

    def _of_nodes(self, job: KnownJob, attempt: Attempt, decision: RestoreDecision) -> _OnNodes | None:
        """None: each rank reads it where the gang does."""
        of_attempt = (job.row, attempt)
        if of_attempt not in self._on_nodes:
            if len(self._on_nodes) >= KEPT_MAX:
                self._on_nodes.clear()
            self._on_nodes[of_attempt] = self._look_up_of_nodes(job, decision)
        return self._on_nodes[of_attempt]

    def _look_up_of_nodes(self, job: KnownJob, decision: RestoreDecision) -> _OnNodes | None:
        if decision.answer is not RestoreAnswer.RESTORE:
            return None
        known = self._catalogue(job)
        chosen = self._chosen(known, decision)
        if chosen is None:
            return None
        nearer = [(one.path, self._parts(one)) for one in restore_point.nearer_copies(known, chosen)]
        parts = self._parts(chosen) if chosen.tier is Tier.LOCAL else {}
        files = self._files(chosen) if chosen.tier is Tier.OBJECT else {}
        if not nearer and not parts and not files:
            return None
        return _OnNodes(chosen, parts, nearer, self._clock.monotonic(), files=files)

    def _files(self, checkpoint: Checkpoint) -> dict[int, tuple[str, ...]]:
        """Files by the rank that wrote them, of ranks that restore no more than that."""
        found: dict[int, tuple[str, ...]] = {}
        for one in self._checkpoints.shards(checkpoint.row) if checkpoint.layout is Layout.FIXED else ():
            if one.file:
                found[one.rank] = (*found.get(one.rank, ()), one.file)
        return found

    def _parts(self, checkpoint: Checkpoint) -> dict[int, Part]:
        """Parts by the rank that wrote a file."""
        shards = self._checkpoints.shards(checkpoint.row)
        parts = {one.rank: Part(one.node, one.file) for one in reversed(shards) if one.file}
        return dict(sorted(parts.items()))

    def _choose_looker(self, job: KnownJob, attempt: Attempt, node: str) -> str:
        """The first that asks; another one when it has reported nothing in time."""
        now = self._clock.monotonic()
        looker, until = self._looking.get((job.row, attempt), (node, 0.0))
        if now >= until:
            looker, until = node, now + LOOK_SECONDS_MAX
            self._looking[job.row, attempt] = looker, until
        return looker

    def _stored(self, job: KnownJob, attempt: Attempt) -> RestoreDecision:
        decision = self._fleet.restore_point(job.row, attempt)
        assert decision is not None  # written and committed by the caller
        if decision.why and decision.answer is not RestoreAnswer.FRESH:
            log.warning(
                "restore_point_not_the_furthest",
                job=str(job.key),
                attempt=str(attempt),
                answer=decision.answer.value,
                reason=decision.why,
            )
        return decision

    def _decide(self, job: KnownJob, attempt: Attempt, ranks: int = 0) -> RestoreDecision:
        known = replace(self._catalogue(job), unseen=self._unseen.get((job.row, attempt), frozenset()))
        return self._decide_of(known, job, attempt, ranks)

    @staticmethod
    def _decide_of(known: restore_point.Catalogue, job: KnownJob, attempt: Attempt, ranks: int) -> RestoreDecision:
        decision = restore_point.decide(known, job.key, attempt, ranks)
        if decision.answer is RestoreAnswer.FRESH and not job.managed:
            why = "the job did not ask for Understudy, so its checkpoints are not recorded"
            decision = RestoreDecision(RestoreAnswer.UNKNOWN, why=why)
        return decision

    def run_attempts(self, job: KnownJob) -> list[RunAttempt]:
        """Attempts of the job and of those that it continues, newest first, as far as their arguments are known."""
        return self._fleet.run_attempts([job.row, *(one.row for one in self._lineage(job).jobs)], RUN_ATTEMPTS_MAX)

    def line(self, job: KnownJob, decision: RestoreDecision) -> str:
        """Line in the job's output: what it continues, or why it begins."""
        why = f" ({decision.why})" if decision.why else ""
        if decision.answer is RestoreAnswer.FRESH:
            return f"begins at step {decision.step}{why}"
        chosen = self._chosen(self._catalogue(job), decision)
        own = chosen is None or chosen.job == job.key
        whose = "continues" if own or chosen is None else f"continues job {chosen.job.job_id}"
        return f"{whose} from step {decision.step}, {decision.path}{why}"

    def _lineage(self, job: KnownJob) -> Lineage:
        return self._family(job)[0]

    def _family(self, job: KnownJob, known: Set[int] = frozenset()) -> tuple[Lineage, list[RunJob]]:
        """Jobs that it continues, and all jobs of its run. `known`: rows of jobs that lead here."""
        run, jobs = self._fleet.run_jobs(job.row)
        own = next((one for one in jobs if one.row == job.row), RunJob(job.row, job.key))
        others, named = [one for one in jobs if one is not own], not run.folder
        if named and run.name.isdecimal() and run.name != str(job.key.job_id):
            others += self._continued(job, int(run.name), known | {job.row, *(one.row for one in others)})
        found = lineage(own, others, named)
        if found.doubt or found.note:  # jobs that saved nothing cast none
            saved = self._checkpoints.announced_checkpoints
            found = lineage(own, [one for one in others if saved(one.key)], named)
        return found, others

    def _continued(self, job: KnownJob, number: int, known: Set[int]) -> list[RunJob]:
        """The job of which the user gave the id for the run's name, and those that it continues."""
        named = self._fleet.known_jobs(job.key.cluster, [number]).get(number)
        if named is None or named.user_id != job.user_id or named.row in known:
            return []
        _, jobs = self._fleet.run_jobs(named.row)
        own = [one for one in jobs if one.row == named.row]
        before = [one for one in self._family(named, known)[0].jobs if one.began_at < own[0].began_at] if own else []
        return [one for one in (*own, *before) if one.row not in known]

    def _catalogue(self, job: KnownJob) -> restore_point.Catalogue:
        store, (found, others) = self._checkpoints, self._family(job)
        keys, rows = [job.key, *(one.key for one in found.jobs)], [job.row, *(one.row for one in others)]
        complete = [one for key in keys for one in store.complete_checkpoints(key, rows)]
        allowed = [one for one in complete if job.may_save_at(one.path)]
        elsewhere = "its run saved checkpoints, all outside of the folders in the job's comment"
        return restore_point.Catalogue(
            allowed,
            [] if complete else [one for key in keys for one in store.announced_checkpoints(key)],
            store.anomalies(keys),
            [one for key in keys for one in store.restore_reports(key)],
            elsewhere if complete and not allowed else found.doubt,
            found.note,
        )
