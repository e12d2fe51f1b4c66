"""The control plane, killed with SIGKILL at every moment that matters, once each.

A moment is a journal entry just committed, or an effect on Slurm just made and not yet recorded. The file beside the
configuration remembers at which moments a process was killed, so the next process comes one further. This program
starts the next one at once, as systemd would, by a fork: the imports alone would take two seconds each time. It leads a
process group, so that the test can kill all of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Engine

from tests.testbed.serve import config_in_arguments
from understudy_controlplane.app import Outside
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.recovery import RecoveryStatus, RecoveryStep
from understudy_controlplane.serve import real_outside, serve
from understudy_controlplane.slurm.protocol import READS, Slurm
from understudy_controlplane.store.journal import Journal
from understudy_controlplane.store.recoveries import RecoveryStore
from understudy_controlplane.store.stores import Stores

DEATHS_FILE = "deaths"
EFFECTS_FILE = "effects"


class Reaper:
    def __init__(self, directory: Path) -> None:
        self._deaths = directory / DEATHS_FILE
        self._effects = directory / EFFECTS_FILE
        self._died_at = set(self._deaths.read_text().splitlines()) if self._deaths.exists() else set()

    def moment(self, name: str) -> None:
        if name not in self._died_at:
            _append(self._deaths, name)
            os.kill(os.getpid(), signal.SIGKILL)

    def effect(self, name: str) -> None:
        _append(self._effects, name)
        self.moment(f"effect {name}")


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


class MortalJournal(Journal):
    def __init__(self, engine: Engine, reaper: Reaper) -> None:
        super().__init__(engine)
        self._reaper = reaper

    def record(
        self,
        changes: Sequence[Change],
        now: float,
        job_rows: Mapping[JobKey, int],
        *,
        looked_at: float | None = None,
    ) -> None:
        super().record(changes, now, job_rows, looked_at=looked_at)
        for kind in sorted({plan.kind.value for one in changes if (plan := one.decision.plan)}):
            self._reaper.moment(f"decided {kind}")


class MortalRecoveries(RecoveryStore):
    def __init__(self, engine: Engine, reaper: Reaper) -> None:
        super().__init__(engine)
        self._reaper = reaper

    def intend(self, recovery: int, step: RecoveryStep, now: float) -> RecoveryStep:
        intended = super().intend(recovery, step, now)
        self._reaper.moment(f"intended {step.name.value}")
        return intended

    def done(
        self, recovery: int, step: RecoveryStep, now: float, detail: str, communicator_at: float | None = None
    ) -> RecoveryStep:
        done = super().done(recovery, step, now, detail, communicator_at)
        self._reaper.moment(f"done {step.name.value}")
        return done

    def end(self, recovery: int, status: RecoveryStatus, outcome: str, now: float) -> None:
        super().end(recovery, status, outcome, now)
        self._reaper.moment(f"ended {recovery} {status.value}")


class MortalSlurm:
    """Real Slurm; notes each effect, and dies after it before it can be recorded."""

    def __init__(self, slurm: Slurm, reaper: Reaper) -> None:
        self._slurm = slurm
        self._reaper = reaper

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._slurm, name)
        return call if name in READS else partial(self._act, name, call)

    def _act(self, name: str, call: Callable[..., None], *arguments: object) -> None:
        call(*arguments)
        self._reaper.effect(f"{name} {arguments}")


def mortal_stores(reaper: Reaper, engine: Engine) -> Stores:
    journal, recoveries = MortalJournal(engine, reaper), MortalRecoveries(engine, reaper)
    return replace(Stores.of(engine), journal=journal, recoveries=recoveries)


def main() -> None:
    os.setpgrp()
    while (child := os.fork()) != 0:
        os.waitpid(child, 0)
    serve_until_killed()


def serve_until_killed() -> None:
    config, config_file = config_in_arguments()
    reaper = Reaper(config_file.parent)
    real = real_outside(config)
    outside = Outside(
        cast(Slurm, MortalSlurm(real.slurm, reaper)),
        real.probe,
        make_stores=partial(mortal_stores, reaper),
    )
    serve(config, config_file, outside)


if __name__ == "__main__":
    main()
