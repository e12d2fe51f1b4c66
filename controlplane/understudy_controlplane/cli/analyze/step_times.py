"""`understudy analyze steps`: which ranks were slow, from a file of step times, without an installation.

It reads the file (any order of columns and lines, gaps, unreadable lines), applies the control plane's detection
(`detect.slow_ranks`) and prints the result. A line takes 28 bytes of memory, and a step of a rank 4 or 8.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from understudy_controlplane.cli.analyze.input_file import InputError, opened, text_of
from understudy_controlplane.cli.output import table_lines
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import PEERS_MIN, SlowRank, judge
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.plain_text import one_line
from understudy_controlplane.fleet.steps import StepTable

SELF_COLUMNS = ("self_seconds", "compute_seconds")
COMPUTE_COLUMNS = ("forward_seconds", "backward_seconds")
ROLE_COLUMNS = ("role", "stage", "pp_rank")
"""The first of these that the file has."""
REPLICA_COLUMN = "dp_rank"
WORK_COLUMN = "work"

STEPS_AT_ONCE = 128
"""Steps judged at once, as many as the control plane keeps."""

REFUSED_LINES_SHOWN = 20
RANKS_MAX = 1_000_000
CELLS_MAX = 1_000_000_000
SECONDS_MAX = 1e6
WORK_MAX = 1e30
STEP_MAX = 2**53
NO_JOB = JobKey("", 0, 0)


class AnalyzeError(Exception):
    """The file cannot be judged; the message says which, why, and what is needed."""


class Line(NamedTuple):
    step: int
    rank: int
    seconds: float  # NaN: a gap
    role: str
    replica: int | None
    work: float  # NaN: not known


@dataclass(slots=True)
class Content:
    """What a file contains, without its step times."""

    ranks: list[int] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)
    replicas: dict[int, int] = field(default_factory=dict)
    has_work: bool = False
    steps: list[int] = field(default_factory=list)
    gaps: int = 0
    refused_count: int = 0
    refused: list[dict[str, Any]] = field(default_factory=list)  # the first refused lines, with reasons

    def contradiction(self, line: Line) -> str:
        """What contradicts earlier lines about this rank; empty: nothing does."""
        role = self.roles.setdefault(line.rank, line.role) if line.role else ""
        replica = self.replicas.setdefault(line.rank, line.replica) if line.replica is not None else None
        if role != line.role:
            return f"rank {line.rank} has role {line.role!r} here and role {role!r} before"
        if replica != line.replica:
            return f"rank {line.rank} has {REPLICA_COLUMN} {line.replica} here and {replica} before"
        return ""

    def refuse(self, line: int, why: str) -> None:
        self.refused_count += 1
        if len(self.refused) < REFUSED_LINES_SHOWN:
            self.refused.append({"line": line, "why": why})


@dataclass(frozen=True, slots=True)
class Analysis:
    content: Content
    suspects: list[SlowRank]
    not_named: list[SlowRank]
    notes: list[str]

    def as_record(self, origin: str, policy: Straggler) -> dict[str, Any]:
        content = self.content
        return {
            "file": origin,
            "suspects": [_record(slow, content) for slow in self.suspects],
            "not_named": [_record(slow, content) | {"why": slow.doubt} for slow in self.not_named],
            "notes": self.notes,
            "ranks": len(content.ranks),
            "steps": len(content.steps),
            "first_step": content.steps[0] if content.steps else None,
            "last_step": content.steps[-1] if content.steps else None,
            "gaps": content.gaps,
            "refused": content.refused_count,
            "refused_lines": content.refused,
            "policy": policy.model_dump(),
        }


def analyze_steps(path: str, policy: Straggler) -> Analysis:
    """`path` may be compressed with gzip, and "-" is standard input. Raises AnalyzeError."""
    try:
        with opened(path) as content, text_of(content, "") as lines:
            return _analyze(lines, policy)
    except InputError as error:
        raise AnalyzeError(str(error)) from error
    except AnalyzeError as error:
        raise AnalyzeError(f"{path}: {error}") from error


def lines(analysis: Analysis) -> Iterator[str]:
    content = analysis.content
    span = f"steps {content.steps[0]} to {content.steps[-1]}" if content.steps else "no steps"
    missing = f"{counted(content.gaps, 'step time')} missing, {counted(content.refused_count, 'line')} refused"
    yield f"{counted(len(content.ranks), 'rank')}, {span}; {missing}"
    if analysis.suspects:
        columns = ("rank", "role", "ratio", "z", "from step", "to step", "peers")
        rows = (
            (
                slow.rank,
                content.roles.get(slow.rank, ""),
                f"{slow.ratio:.2f}",
                f"{slow.z:.1f}",
                slow.first_step,
                slow.last_step,
                slow.peers,
            )
            for slow in analysis.suspects
        )
        yield from table_lines(columns, rows)
    else:
        yield "no rank is slow compared with its peers"
    for slow in analysis.not_named:
        yield one_line(f"rank {slow.rank} takes {slow.ratio:.2f} times as long, but is not named: {slow.doubt}")
    for note in analysis.notes:
        yield one_line(f"note: {note}")
    for one in content.refused:
        yield one_line(f"line {one['line']} refused: {one['why']}")
    if content.refused_count > len(content.refused):
        yield f"... and {content.refused_count - len(content.refused)} more lines refused"


def _analyze(lines: IO[str], policy: Straggler) -> Analysis:
    content = Content()
    places, values = array("q"), array("f")
    for rank, step, line, seconds, work in _cells(lines, content):
        places.extend((rank, step, line))
        values.extend((seconds, work))
    if not content.ranks:
        raise AnalyzeError(
            f"the file contains no step time; "
            f"{counted(content.refused_count, 'line was', 'lines were')} refused{_first_refusal(content)}"
        )
    matrices = _matrices(np.array(places).reshape(-1, 3), np.array(values).reshape(-1, 2), content)
    return _judge_all(matrices, content, policy, _notes(content, policy))


def _cells(lines: IO[str], content: Content) -> Iterator[tuple[int, int, int, float, float]]:
    reader = csv.reader(lines)
    header = next(_rows(reader, content), None)
    if header is None:
        raise AnalyzeError("the file is empty; its first line must name the columns")
    columns = _Columns.of([name.strip().lower() for name in header])
    content.has_work = columns.work is not None
    row_of: dict[int, int] = {}
    column_of: dict[int, int] = {}
    for row in _rows(reader, content):
        if not row:
            continue
        try:
            line = columns.read(row)
        except ValueError as error:
            content.refuse(reader.line_num, str(error))
            continue
        if line.rank not in row_of:
            if len(row_of) >= RANKS_MAX:
                content.refuse(reader.line_num, f"more than {RANKS_MAX} ranks")
                continue
            row_of[line.rank] = len(content.ranks)
            content.ranks.append(line.rank)
        if line.step not in column_of:
            column_of[line.step] = len(content.steps)
            content.steps.append(line.step)
        contradiction = content.contradiction(line)
        if contradiction:
            content.refuse(reader.line_num, contradiction)
            continue
        yield row_of[line.rank], column_of[line.step], reader.line_num, line.seconds, line.work


def _rows(reader: Any, content: Content) -> Iterator[list[str]]:
    """Lines that the CSV reader cannot read are refused like others."""
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            content.refuse(reader.line_num, f"not CSV: {error}")


@dataclass(frozen=True, slots=True)
class _Columns:
    count: int
    step: int
    rank: int
    seconds: tuple[int, ...]  # their sum is the self time
    role: int | None
    replica: int | None
    work: int | None

    @classmethod
    def of(cls, names: Sequence[str]) -> _Columns:
        """Raises AnalyzeError when a column is missing."""
        missing = [name for name in ("step", "rank") if name not in names]
        own: tuple[str, ...] = next(((name,) for name in SELF_COLUMNS if name in names), ())
        if not own and all(name in names for name in COMPUTE_COLUMNS):
            own = COMPUTE_COLUMNS
        if missing or not own:
            missing += [] if own else [f"{SELF_COLUMNS[0]} (or {' and '.join(COMPUTE_COLUMNS)})"]
            raise AnalyzeError(
                f"the first line names no column {', '.join(missing)}; it names {', '.join(names)[:200]}. "
                "Wall time is the same on every rank and would name no rank"
            )
        role = next((names.index(name) for name in ROLE_COLUMNS if name in names), None)
        replica, work = (names.index(name) if name in names else None for name in (REPLICA_COLUMN, WORK_COLUMN))
        times = tuple(map(names.index, own))
        return cls(len(names), names.index("step"), names.index("rank"), times, role, replica, work)

    def read(self, row: Sequence[str]) -> Line:
        """Raises ValueError."""
        if len(row) != self.count:
            raise ValueError(f"{len(row)} fields, but the first line names {self.count}")
        step, rank = _whole(row[self.step], "step", STEP_MAX), _whole(row[self.rank], "rank", 2**31 - 1)
        seconds = sum(_number(row[column], "time", SECONDS_MAX) for column in self.seconds)
        role = _text(row[self.role]) if self.role is not None else ""
        replica = _text(row[self.replica]) if self.replica is not None else ""
        work = _number(row[self.work], "work", WORK_MAX) if self.work is not None else math.nan
        known = _whole(replica, REPLICA_COLUMN, 2**31 - 1) if replica else None
        return Line(step, rank, seconds, role, known, work)


def _text(value: str) -> str:
    return "" if value.strip().lower() in ("nan", "none", "null") else value.strip()


def _whole(text: str, what: str, most: int) -> int:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{what} {text[:40]!r} is no number") from None
    if not (number.is_integer() and 0 <= number <= most):
        raise ValueError(f"{what} {text[:40]!r} is no whole number from 0 to {most}")
    return int(number)


def _number(text: str, what: str, most: float) -> float:
    """NaN where it is missing."""
    if not text.strip() or text.strip().lower() in ("none", "null"):
        return math.nan
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{what} {text[:40]!r} is no number") from None
    if number < 0 or number > most:
        raise ValueError(f"{what} {text[:40]!r} is impossible")
    return number


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Matrices of shape (steps, ranks), in order. NaN: missing; of two values the first counts."""

    seconds: npt.NDArray[np.float32]
    work: npt.NDArray[np.float32] | None  # None: the file has none


def _matrices(places: npt.NDArray[np.int64], values: npt.NDArray[np.float32], content: Content) -> _Matrices:
    """`places`: rank, step and line, as `content` numbers them; `values`: seconds and work."""
    steps, ranks = len(content.steps), len(content.ranks)
    if steps * ranks > CELLS_MAX:
        raise AnalyzeError(f"{ranks} ranks times {steps} steps are too many for one analysis; give fewer steps")
    column, row = (np.argsort(np.argsort(numbers, kind="stable")) for numbers in (content.steps, content.ranks))
    flat = column[places[:, 1]] * ranks + row[places[:, 0]]
    new = np.zeros(len(flat), np.bool_)
    new[np.unique(flat, return_index=True)[1]] = True
    for rank, step, line in places[~new][:REFUSED_LINES_SHOWN].tolist():
        content.refused.append({"line": line, "why": _repeated(content, rank, step)})
    content.refused_count += int((~new).sum())
    content.refused = sorted(content.refused, key=lambda one: int(one["line"]))[:REFUSED_LINES_SHOWN]
    content.steps.sort()
    content.ranks.sort()
    times = _filled(flat[new], values[new, 0], (steps, ranks))
    work = _filled(flat[new], values[new, 1], (steps, ranks)) if content.has_work else None
    content.gaps = int(np.isnan(times).sum())
    return _Matrices(times, work)


def _filled(
    places: npt.NDArray[np.int64], values: npt.NDArray[np.float32], shape: tuple[int, int]
) -> npt.NDArray[np.float32]:
    made = np.full(shape, np.nan, np.float32)
    made.reshape(-1)[places] = values
    return made


def _repeated(content: Content, rank: int, step: int) -> str:
    return f"step {content.steps[step]} of rank {content.ranks[rank]} occurs twice: the first counts"


def _notes(content: Content, policy: Straggler) -> list[str]:
    notes: list[str] = []
    if len(content.steps) < policy.window_steps:
        notes.append(
            f"{counted(len(content.steps), 'step is', 'steps are')} too few: a window takes {policy.window_steps}"
        )
    sizes: dict[str, int] = {}
    for rank in content.ranks:
        role = content.roles.get(rank, "")
        sizes[role] = sizes.get(role, 0) + 1
    small = [f"{role or 'none'} ({size})" for role, size in sizes.items() if size < PEERS_MIN]
    if small:
        notes.append(
            f"not judged: roles with fewer than {PEERS_MIN} ranks, too few to see which one is slow: "
            + ", ".join(small[:20])
            + (f" and {len(small) - 20} more" if len(small) > 20 else "")
        )
    return notes


def _judge_all(matrices: _Matrices, content: Content, policy: Straggler, notes: list[str]) -> Analysis:
    """Judges as the control plane would have, at every half window."""
    named: dict[int, SlowRank] = {}
    doubted: dict[int, SlowRank] = {}
    half = policy.window_steps // 2
    for end in range(2 * half, len(content.steps) + 1, half):
        for slow in judge(_table(matrices, max(0, end - STEPS_AT_ONCE), end, content), policy):
            found = replace(
                slow,
                rank=content.ranks[slow.rank],
                first_step=content.steps[slow.first_step],
                last_step=content.steps[slow.last_step],
            )
            where = doubted if found.doubt else named
            where[found.rank] = _joined(where.get(found.rank), found)
    return Analysis(
        content,
        sorted(named.values(), key=lambda slow: -slow.ratio),
        [slow for rank, slow in sorted(doubted.items()) if rank not in named],
        notes,
    )


def _table(matrices: _Matrices, begin: int, end: int, content: Content) -> StepTable:
    ranks = len(content.ranks)
    replicas = [content.replicas.get(rank, -1) for rank in content.ranks] if content.replicas else []
    return StepTable(
        job=NO_JOB,
        attempt=Attempt(0),
        first_step=begin,
        self_seconds=np.ascontiguousarray(matrices.seconds[begin:end].T),
        last_step=np.full(ranks, end - 1, np.int64),
        nodes=("",) * ranks,
        roles=tuple(content.roles.get(rank, "") for rank in content.ranks),
        gpus=(None,) * ranks,
        advanced_at=0.0,
        replicas=np.array(replicas, np.int64),
        work=None if matrices.work is None else np.ascontiguousarray(matrices.work[begin:end].T),
    )


def _joined(before: SlowRank | None, now: SlowRank) -> SlowRank:
    """Several verdicts on one rank as one: the worst ratio, over all of their steps."""
    if before is None:
        return now
    worst = max(before, now, key=lambda slow: slow.ratio)
    return replace(
        worst, first_step=min(before.first_step, now.first_step), last_step=max(before.last_step, now.last_step)
    )


def _record(slow: SlowRank, content: Content) -> dict[str, Any]:
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(slow).items()}
    rounded.pop("doubt")
    return rounded | {"role": content.roles.get(slow.rank, "")}


def _first_refusal(content: Content) -> str:
    return (
        f", the first (line {content.refused[0]['line']}) because {content.refused[0]['why']}"
        if content.refused
        else ""
    )
