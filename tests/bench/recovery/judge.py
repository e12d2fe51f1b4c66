"""Turns what a job wrote down into figures. Pure.

The gang that counts after a fault is the one that does the first step: launches that fail again before that (on the
node that is still broken, say) are part of the price.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.bench.recovery.job import weight_after
from tests.bench.result import Result, result

UNDERSTUDY = "understudy"
PHASES = (
    "to_detection_seconds",
    "to_gang_seconds",
    "to_communicator_seconds",
    "to_first_step_seconds",
    "steps_lost",
)
"""Until the side knows of the fault; the last process of the gang that comes back has begun; its last rank is connected
with the others; it has done its first step.
"""


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    gang: str
    done: int
    """Steps done then, this one included."""


@dataclass(frozen=True, slots=True)
class Run:
    """One job with one fault. None: it did not come about within `waited_seconds`."""

    side: str
    fault: str
    waited_seconds: float
    to_detection_seconds: float | None = None
    to_gang_seconds: float | None = None
    to_communicator_seconds: float | None = None
    to_first_step_seconds: float | None = None
    steps_lost: int | None = None
    weights_right: bool | None = None
    """None: the job was not brought to its end, because it never came back."""
    remark: str = ""


def read_steps(text: str) -> list[Step]:
    """The last line may be half written."""
    lines = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return [Step(float(words[0]), words[1], int(words[2])) for words in lines if len(words) == 3]


def read_joined(text: str) -> list[dict[str, Any]]:
    """JSON objects, one a line; the last may be half written."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n")]


def first_step_after(steps: Sequence[Step], fault_at: float) -> Step | None:
    """The first step of another gang than the one that the fault hit."""
    hit = [one for one in steps if one.at <= fault_at]
    old = hit[-1].gang if hit else None
    return next((one for one in steps if one.at > fault_at and one.gang != old), None)


def judge(
    run: Run, steps: Sequence[Step], joined: Iterable[Mapping[str, Any]], fault_at: float, detected_at: float | None
) -> Run:
    """The run, with what the job wrote down."""
    first = first_step_after(steps, fault_at)
    detected = None if detected_at is None else detected_at - fault_at
    if first is None:
        return replace(run, to_detection_seconds=detected)
    ranks = [one for one in joined if one["gang"] == first.gang]
    before = max((one.done for one in steps if one.at < first.at), default=0)
    return replace(
        run,
        to_detection_seconds=detected,
        to_gang_seconds=max(float(one["began"]) for one in ranks) - fault_at,
        to_communicator_seconds=max(float(one["joined"]) for one in ranks) - fault_at,
        to_first_step_seconds=first.at - fault_at,
        steps_lost=before - (first.done - 1),
    )


def weights_right(final: Sequence[Mapping[str, Any]], ranks: int) -> bool:
    """Every rank ended with the weights of a run without faults, after the same step."""
    if {one["rank"] for one in final} != set(range(ranks)) or len({one["step"] for one in final}) != 1:
        return False
    return {one["weight"] for one in final} == {weight_after(int(final[0]["step"]), ranks)}


def figures(runs: Sequence[Run]) -> list[Result]:
    """`FAULT_PHASE` for each fault and phase of Understudy's runs, beside the other tools' medians."""
    found = []
    for fault in dict.fromkeys(one.fault for one in runs):
        for phase in PHASES:
            own = values(runs, UNDERSTUDY, fault, phase)
            rivals = dict.fromkeys(one.side for one in runs if one.fault == fault and one.side != UNDERSTUDY)
            if own:
                others = {side: values(runs, side, fault, phase) for side in rivals}
                unit = "steps" if phase == "steps_lost" else "s"
                found.append(result(f"{fault}_{phase}", unit, own, others, more_is_better=False))
    return found


def values(runs: Iterable[Run], side: str, fault: str, phase: str) -> list[float]:
    values_of = (getattr(one, phase) for one in runs if (one.side, one.fault) == (side, fault))
    return [float(one) for one in values_of if one is not None]


def broken_promises(runs: Iterable[Run]) -> list[str]:
    """Errors of Understudy's runs: a gang that did not recover, or ended with other weights. Those of other tools are
    not counted.
    """
    return [
        f"{one.side}, {one.fault}: "
        + (f"not back within {one.waited_seconds:.0f} s" if one.to_first_step_seconds is None else "the weights differ")
        + (f" ({one.remark})" if one.remark else "")
        for one in runs
        if one.side.startswith(UNDERSTUDY) and not one.weights_right
    ]
