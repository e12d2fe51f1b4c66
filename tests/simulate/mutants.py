"""Guards and steps of the control plane, broken on purpose. The simulator must find each of them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sqlalchemy import true

from tests.simulate.drawn import DRAWN
from tests.simulate.edits import edited
from understudy_controlplane.decide import guards, requests_in_force, restore_point
from understudy_controlplane.fleet.operator import Pause
from understudy_controlplane.fleet.recovery import StepName
from understudy_controlplane.recover import runner
from understudy_controlplane.recover.step import Done
from understudy_controlplane.recover.steps import STEPS, nodes
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.recoveries import RecoveryStore

Mutant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def steps_do_nothing(*names: StepName) -> Iterator[None]:
    with patch.dict(STEPS, {name: replace(STEPS[name], observe=lambda _: Done()) for name in names}):
        yield


def _half_checkpoints(store: CheckpointStore, job: Any, run: Any = ()) -> Any:
    """Also those of which shards are missing."""
    with patch("understudy_controlplane.store.checkpoints.is_complete", true):
        return _COMPLETE(store, job, run)


SILENCE = importlib.import_module("understudy_controlplane.detect.silence")  # the package has a function of that name
_COMPLETE = CheckpointStore.complete_checkpoints
_CHOOSE = restore_point.choose

MUTANTS: dict[str, tuple[str, Mutant]] = {
    "no quarantine budget": (
        "never-over-a-budget",
        lambda: patch.object(guards, "quarantine_limit", lambda _snapshot, _config: 99),
    ),
    "a pause is ignored": (
        "a-pause-begins-nothing",
        lambda: patch.object(requests_in_force, "_pause", lambda *_: Pause()),
    ),
    "drains of administrators are overwritten": (
        "nothing-of-others-touched",
        lambda: patch.object(nodes, "_open", lambda node: not node.reason.startswith("understudy:")),
    ),
    "no intent is recorded": (
        "no-effect-without-decision",
        lambda: patch.object(RecoveryStore, "intend", lambda _store, _recovery, step, _now: step),
    ),
    "seats are never released": (
        "everything-has-an-owner",
        lambda: steps_do_nothing(StepName.RELEASE_SEATS, StepName.DELETE_SEATS),
    ),
    "nodes are never drained": ("everything-has-an-owner", lambda: steps_do_nothing(StepName.DRAIN_NODES)),
    "half a checkpoint is enough": (
        "restored-only-from-good",
        lambda: patch.object(CheckpointStore, "complete_checkpoints", _half_checkpoints),
    ),
    "a loss that is NaN is ignored": (
        "restored-only-from-good",
        lambda: patch.object(restore_point, "choose", lambda complete, _=(): _CHOOSE(complete)),
    ),
    "silence is death": (
        "no-decision-without-evidence",
        lambda: patch.object(SILENCE, "_why_not_dead", lambda *_: ""),
    ),
    "a promised spare counts as free": (
        "a-seat-is-for-one-gang",
        lambda: edited(*DRAWN["a promised spare counts as free"].edits),  # seeds meet its moment too rarely
    ),
    "no step is ever too late": (
        "every-recovery-ends",
        lambda: patch.object(runner, "timeout_seconds", lambda *_: math.inf),
    ),
}
"""Name → the invariant that it violates, and how the code is broken. Patches, because these parts have no other."""
