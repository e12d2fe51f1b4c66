"""The stages of a validation: what the site's file says of each, and what became of it: names, units, limits, and the
line in which results travel.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class StageName(StrEnum):
    """The stages run in this order."""

    CLOCK = "clock"
    CPU = "cpu"
    MEMORY = "memory"
    DISK_WRITE = "disk_write"
    DISK_READ = "disk_read"
    PCIE = "pcie"
    NVLINK = "nvlink"
    GPU = "gpu"
    NETWORK = "network"


class StageStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not_possible"  # it cannot run on this node, which proves nothing


UNITS: Mapping[StageName, str] = {
    StageName.CLOCK: "ms",
    StageName.CPU: "Gflop/s",
    StageName.MEMORY: "GB/s",
    StageName.DISK_WRITE: "MB/s",
    StageName.DISK_READ: "MB/s",
    StageName.PCIE: "GB/s",
    StageName.NVLINK: "GB/s",
    StageName.GPU: "Tflop/s",
    StageName.NETWORK: "GB/s",
}

LOWER_IS_BETTER = frozenset({StageName.CLOCK})
SECONDS_MAX = 24 * 3600.0
WHY_CHARACTERS_MAX = 40
LINE_BYTES_MAX = 440
"""The end of a job's output has 700 bytes without a shared directory. The network has a line of its own."""

PREFIX = "understudy-stages "


class StagesError(ValueError):
    """The site's file cannot be used. The message says what is wrong with it."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"pass_mark": "pass"}):
    """A table of the site's file."""

    enabled: bool = True
    seconds: float = 10.0
    pass_mark: float = 0.0
    """The least value, or the greatest one of a clock's offset. 0: it only has to run without an error. Of the network:
    the least share of the median.
    """

    required: bool = False
    """The validation fails where it cannot run."""

    path: str = ""
    """A directory on the disk, for the disk stages."""

    celsius_max: float = 0.0
    """Highest temperature that one of the GPUs may reach. 0: any."""


DISK = "/var/tmp"  # noqa: S108 - on a disk, with space for a large file

DEFAULTS: Mapping[StageName, Stage] = {
    StageName.CLOCK: Stage(seconds=0.0, pass_mark=100.0),
    StageName.CPU: Stage(seconds=10.0),
    StageName.MEMORY: Stage(seconds=5.0),
    StageName.DISK_WRITE: Stage(seconds=10.0, path=DISK),
    StageName.DISK_READ: Stage(seconds=5.0, path=DISK),
    StageName.PCIE: Stage(seconds=5.0),
    StageName.NVLINK: Stage(seconds=5.0),
    StageName.GPU: Stage(seconds=60.0),
    StageName.NETWORK: Stage(enabled=False, seconds=2.0, pass_mark=0.95),
}


class StageResult(msgspec.Struct, frozen=True):
    stage: StageName
    status: StageStatus
    value: float | None  # in the unit of the stage
    pass_mark: float
    seconds: float  # that it took
    why: str = ""  # where it has not passed; of GPUs also how hot they became

    @property
    def words(self) -> str:
        measured = f"{self.value:g} {UNITS[self.stage]}" if self.value is not None else ""
        bound = "at most" if self.stage in LOWER_IS_BETTER else "at least"
        mark = f"{bound} {self.pass_mark:g}" if self.pass_mark and measured else ""
        known = "; ".join(part for part in (measured, mark, self.why) if part)
        return f"{self.stage.value} {self.status.value.replace('_', ' ')}{f': {known}' if known else ''}"


def read_stages(text: str) -> dict[StageName, Stage]:
    """What the file does not name is as by default; an empty file is the default. Raises StagesError."""
    try:
        return merged(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise StagesError(f"it is not TOML: {error}") from error


def merged(tables: Mapping[str, object]) -> dict[StageName, Stage]:
    """`read_stages` of a file that is read already."""
    unknown = sorted(set(tables) - {name.value for name in StageName})
    if unknown:
        known = ", ".join(name.value for name in StageName)
        raise StagesError(f"there is no stage {', '.join(unknown)}; the stages are {known}")
    return {name: _merged(name, tables.get(name.value, {})) for name in StageName}


def _merged(name: StageName, table: object) -> Stage:
    if not isinstance(table, dict):
        raise StagesError(f"{name.value} has to be a table: [{name.value}]")
    given = {**msgspec.to_builtins(DEFAULTS[name]), **table}
    try:
        stage = msgspec.convert(given, Stage)
    except msgspec.ValidationError as error:
        raise StagesError(f"[{name.value}]: {error}") from error
    if not 0 <= stage.seconds <= SECONDS_MAX:
        raise StagesError(f"[{name.value}]: seconds has to be from 0 to {SECONDS_MAX:g}")
    if not 0 <= stage.celsius_max < float("inf"):
        raise StagesError(f"[{name.value}]: celsius_max has to be 0 or more")
    if not 0 <= stage.pass_mark < float("inf"):
        raise StagesError(f"[{name.value}]: pass has to be 0 or more")
    if name in (StageName.DISK_WRITE, StageName.DISK_READ) and not stage.path.startswith("/"):
        raise StagesError(f"[{name.value}]: path has to be an absolute path")
    return stage


def toml_of(stages: Mapping[StageName, Stage]) -> str:
    """A file as `read_stages` takes it, also that of an agent that does not know `celsius_max` where it is not set."""
    tables = msgspec.to_builtins(stages)
    lines = [
        f"[{name}]\n{''.join(f'{key} = {json.dumps(value)}{chr(10)}' for key, value in table.items())}"
        for name, table in tables.items()
    ]
    return "".join(lines).replace("celsius_max = 0.0\n", "")


def judged(name: StageName, stage: Stage, value: float, seconds: float) -> StageResult:
    """A stage that ran without an error."""
    good = value <= stage.pass_mark if name in LOWER_IS_BETTER else value >= stage.pass_mark
    status = StageStatus.PASSED if good or not stage.pass_mark else StageStatus.FAILED
    return StageResult(name, status, float(f"{value:.4g}"), stage.pass_mark, seconds)


def line_of(results: Iterable[StageResult]) -> str:
    """One line, short enough for the comment of a Slurm job."""
    results = list(results)
    for characters in (WHY_CHARACTERS_MAX, 12, 0):
        rows = [
            [
                one.stage,
                one.status[0],
                one.value,
                float(f"{one.pass_mark:.4g}"),
                round(one.seconds, 1),
                _plain(one.why)[:characters],
            ]
            for one in results
        ]
        line = PREFIX + msgspec.json.encode(rows).decode()
        if len(line) <= LINE_BYTES_MAX:
            break
    return line


def _plain(text: str) -> str:
    return " ".join(text.encode("ascii", "replace").decode().replace('"', "'").replace("\\", "/").split())


def results_of(output: str) -> tuple[list[StageResult], str]:
    """The results in the output of a job, and the output without them. A line that was cut off is none; of a stage that
    ran again, the last result counts.
    """
    lines = output.splitlines()
    found: dict[StageName, StageResult] = {}
    others = []
    for line in lines:
        if not line.startswith(PREFIX):
            others.append(line)
            continue
        try:
            rows = msgspec.json.decode(
                line.removeprefix(PREFIX), type=list[tuple[str, str, float | None, float, float, str]]
            )
            found |= {one.stage: one for one in (_result(*row) for row in rows)}
        except (msgspec.MsgspecError, ValueError, KeyError):
            others.append("the results of the stages cannot be read")
    return list(found.values()), "\n".join(others).strip()


_BY_INITIAL = {status.value[0]: status for status in StageStatus}


def _result(stage: str, status: str, value: float | None, mark: float, seconds: float, why: str) -> StageResult:
    return StageResult(StageName(stage), _BY_INITIAL[status], value, mark, seconds, why)
