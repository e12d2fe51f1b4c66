"""What a mode would do at once, before an administrator sets it: the decisions of the next round in it. Pure."""

from __future__ import annotations

from dataclasses import replace

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.operator import Acting
from understudy_controlplane.fleet.part_modes import part_modes
from understudy_controlplane.fleet.recovery import PagePlan
from understudy_controlplane.fleet.snapshot import Snapshot


def done_at_once(snapshot: Snapshot, wanted: Mode, config: Config) -> list[str]:
    """Also where the mode is above the configured one: as if the file had it."""
    if wanted.at_most(config.highest_mode) is not wanted:
        config = config.model_copy(update={"mode": wanted})
    known = {one.id: frozenset(one.rules) for one in snapshot.incidents.values()}
    acting = snapshot.operator.acting
    if acting is None or acting.since is None:
        acting = Acting(snapshot.now, known)
    then = replace(
        snapshot,
        mode=config.highest_mode.at_most(wanted),
        part_modes=part_modes(config, wanted, snapshot.nodes.values()),
        operator=replace(snapshot.operator, acting=acting),
    )
    return [
        f"{one.subject}: {one.reason}"
        for one in decide(then, detect(then, config), config)
        if (one.plan is not None and not isinstance(one.plan, PagePlan)) or one.proposed is not None
    ]
