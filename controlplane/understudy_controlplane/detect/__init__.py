"""Detection: what looks wrong in a snapshot. Pure functions, one module for each kind of fault.

Belongs here: `snapshot → findings`. Must not: what follows from a finding (`decide`), I/O, clock, randomness, logging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from understudy_controlplane.config import Config
from understudy_controlplane.detect.administration import administration, cancelled, faults_gone, undrained
from understudy_controlplane.detect.block_fabric import block_faults_joined
from understudy_controlplane.detect.common_cause import shared_signs_joined
from understudy_controlplane.detect.corruption import corruption
from understudy_controlplane.detect.drift import drift
from understudy_controlplane.detect.driver import silent_drivers
from understudy_controlplane.detect.fabric import ports
from understudy_controlplane.detect.failures import Failures
from understudy_controlplane.detect.gpu_state import gpu_state
from understudy_controlplane.detect.hang import hang, may_be_mass_hang, not_before_its_switch
from understudy_controlplane.detect.hardware import hardware
from understudy_controlplane.detect.hung_again import hung_again
from understudy_controlplane.detect.inventory import inventory
from understudy_controlplane.detect.kernel_log import kernel_log
from understudy_controlplane.detect.launches import launches
from understudy_controlplane.detect.lemon import lemon
from understudy_controlplane.detect.prolog import drained_for_prolog
from understudy_controlplane.detect.scattered import scattered
from understudy_controlplane.detect.seats import lost_seats
from understudy_controlplane.detect.silence import may_be_mass_silence, silence
from understudy_controlplane.detect.site_signals import site_signals
from understudy_controlplane.detect.slow_gang import slow_gangs
from understudy_controlplane.detect.stopped import stopped
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.detect.stranded import found_slow, stranded
from understudy_controlplane.detect.wear_trend import wear_trends
from understudy_controlplane.detect.xid import xid
from understudy_controlplane.fleet.finding import (
    ACCUSING,
    HANGS,
    LETS_JOBS_END,
    Finding,
    Signal,
    failed_detectors,
    unjudged_nodes,
)
from understudy_controlplane.fleet.incident import FABRIC_SIGNS, NVLINK_XIDS
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.suspicion import SuspicionCause

SUSPICION_OF = {
    Signal.HEALTH_SUSPECTED: SuspicionCause.HEALTH,
    Signal.CORRUPTION_SUSPECTED: SuspicionCause.CORRUPTION,
}
"""A suspicion does not end while its signal is still found. Other detectors end what they found themselves."""

Detector = Callable[[Snapshot, Config], Iterable[Finding]]

DETECTORS: Mapping[str, Detector] = {
    # One: a node that is to be drained again is none whose drain a person has lifted.
    "administration": lambda seen, _: (*administration(seen), *cancelled(seen), *undrained(seen)),
    "prolog": lambda seen, _: drained_for_prolog(seen),
    "xid": lambda seen, config: xid(seen, config.xid),
    "kernel_log": lambda seen, config: shared_signs_joined(seen, list(kernel_log(seen, config.xid)), config.hardware),
    "gpu_state": lambda seen, _: gpu_state(seen),
    "hardware": lambda seen, config: hardware(seen, config.hardware),
    "wear_trend": lambda seen, config: wear_trends(seen, config.hardware),
    "driver": lambda seen, config: silent_drivers(seen, config.hardware),
    "fabric": lambda seen, config: ports(seen, config.hardware),
    "silence": lambda seen, config: silence(seen, config.silence),
    "seats": lambda seen, _: lost_seats(seen),
    "stopped": lambda seen, _: stopped(seen),
    "straggler": lambda seen, config: straggler(seen, config.straggler, probed=config.probes_suspects(seen.mode)),
    "corruption": lambda seen, _: corruption(seen),
    "lemon": lambda seen, config: lemon(seen, config.lemon),
    "inventory": lambda seen, _: inventory(seen),
    "drift": lambda seen, config: drift(seen, config.hardware.baseline),
    "launches": lambda seen, _: launches(seen),
    "hang": lambda seen, config: hang(seen, config.hang, config.silence),
    "hung_again": lambda seen, _: hung_again(seen),
    "scattered": lambda seen, _: scattered(seen),
    "slow_gang": lambda seen, config: slow_gangs(seen, config.straggler),
    "site_signals": lambda seen, config: site_signals(seen, config.signals),
}

BY_NODE = frozenset({"administration", "prolog", "kernel_log", "gpu_state", "hardware", "wear_trend", "corruption"})
"""Detectors that look at each node by itself: where one fails on a few nodes, it still judges the others. One that
compares nodes with each other could take what they have in common for a fault of one.
"""

RECORDING = frozenset({"lemon", "inventory", "drift", "scattered"})
"""Detectors whose findings are recorded, and no more: their silence holds nothing back."""

MASSES: Mapping[str, Callable[[Snapshot, Config], bool]] = {
    "silence": lambda seen, config: may_be_mass_silence(seen, config.silence),
    "hang": lambda seen, config: may_be_mass_hang(seen, config.hang),
}
"""Detectors whose findings hold everything back where they are many → whether they may be, counted in a simpler way."""


@np.errstate(all="ignore")  # what cannot be computed of the numbers that ranks report is not known
def detect(snapshot: Snapshot, config: Config, detectors: Mapping[str, Detector] = DETECTORS) -> list[Finding]:
    """All findings of this moment. What is still so is found again at the next.

    A detector that fails does not stop the others, and its silence proves nothing: no fault is gone then, and no
    suspicion ends. Of which nodes, that depends on the detector.
    """
    failures = Failures(snapshot.now)
    found: list[Finding] = []
    for name, look in detectors.items():
        if name in BY_NODE:
            found += failures.caught_by_node(name, partial(_with_config, look, config), snapshot)
            continue
        mass = partial(MASSES[name], snapshot, config) if name in MASSES else None
        concerned = () if name in RECORDING else None
        found += failures.caught(name, partial(look, snapshot, config), mass=mass, nodes=concerned)
    others = [one for one in found if one.rule not in FABRIC_SIGNS | NVLINK_XIDS]
    found = failures.caught("block_fabric", lambda: block_faults_joined(snapshot, found), otherwise=others)
    others = [one for one in found if one.signal not in HANGS]
    ports_known = "fabric" not in failures.detectors
    found = failures.caught(
        "failed_switch", lambda: not_before_its_switch(snapshot, found, ports_known=ports_known), otherwise=others
    )
    accused = {one.node for one in found if one.signal in ACCUSING - LETS_JOBS_END}
    suspected = {(one.node, SUSPICION_OF[one.signal]) for one in found if one.signal in SUSPICION_OF}
    silent = {one.node for one in found if one.signal is Signal.SILENT and snapshot.nodes[one.node].has_agent}
    slow = found_slow(found)
    found += failures.caught("stranded", lambda: stranded(snapshot, accused, config.straggler, slow))
    unjudged = {*unjudged_nodes(failures.findings)}
    if not failed_detectors(failures.findings):
        accused = {one.node for one in found if one.signal in ACCUSING} | unjudged
        found += failures.caught("faults_gone", lambda: faults_gone(snapshot, accused))
    if failed_detectors(failures.findings):
        unjudged = {*snapshot.nodes}
    unknown = silent | unjudged
    well = [
        one
        for one in found
        if one.signal is not Signal.CLEAN or (one.node not in unknown and (one.node, one.suspicion) not in suspected)
    ]
    return [*well, *failures.findings]


def _with_config(look: Detector, config: Config, snapshot: Snapshot) -> Iterable[Finding]:
    return look(snapshot, config)
