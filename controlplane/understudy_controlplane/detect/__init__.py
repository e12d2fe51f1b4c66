"""Detection: what looks wrong in a snapshot. Pure functions, one module for each kind of fault.

Belongs here: `snapshot → findings`. Must not: what follows from a finding (`decide`), I/O, clock, randomness, logging.
"""

from __future__ import annotations

from understudy_controlplane.config import Config
from understudy_controlplane.detect.administration import administration, cancelled, faults_gone, undrained
from understudy_controlplane.detect.block_fabric import block_faults_joined
from understudy_controlplane.detect.common_cause import shared_signs_joined
from understudy_controlplane.detect.corruption import corruption
from understudy_controlplane.detect.drift import drift
from understudy_controlplane.detect.driver import silent_drivers
from understudy_controlplane.detect.fabric import ports
from understudy_controlplane.detect.gpu_state import gpu_state
from understudy_controlplane.detect.hang import hang, not_before_its_switch
from understudy_controlplane.detect.hardware import hardware
from understudy_controlplane.detect.inventory import inventory
from understudy_controlplane.detect.kernel_log import kernel_log
from understudy_controlplane.detect.launches import launches
from understudy_controlplane.detect.lemon import lemon
from understudy_controlplane.detect.prolog import drained_for_prolog
from understudy_controlplane.detect.seats import lost_seats
from understudy_controlplane.detect.silence import silence
from understudy_controlplane.detect.site_signals import site_signals
from understudy_controlplane.detect.slow_gang import slow_gangs
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.detect.stranded import stranded
from understudy_controlplane.detect.wear_trend import wear_trends
from understudy_controlplane.detect.xid import xid
from understudy_controlplane.fleet.finding import ACCUSING, Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.suspicion import SuspicionCause

SUSPICION_OF = {
    Signal.HEALTH_SUSPECTED: SuspicionCause.HEALTH,
    Signal.CORRUPTION_SUSPECTED: SuspicionCause.CORRUPTION,
}
"""A suspicion does not end while its signal is still found. Other detectors end what they found themselves."""


def detect(snapshot: Snapshot, config: Config) -> list[Finding]:
    """All findings of this moment. What is still so is found again at the next."""
    found = [
        *administration(snapshot),
        *cancelled(snapshot),
        *drained_for_prolog(snapshot),
        *xid(snapshot, config.xid),
        *shared_signs_joined(snapshot, list(kernel_log(snapshot, config.xid)), config.hardware),
        *gpu_state(snapshot),
        *hardware(snapshot, config.hardware),
        *wear_trends(snapshot, config.hardware),
        *silent_drivers(snapshot, config.hardware),
        *ports(snapshot, config.hardware),
        *silence(snapshot, config.silence),
        *undrained(snapshot),
        *lost_seats(snapshot),
        *straggler(snapshot, config.straggler, probed=config.probes_suspects(snapshot.mode)),
        *corruption(snapshot),
        *lemon(snapshot, config.lemon),
        *inventory(snapshot),
        *drift(snapshot, config.hardware.baseline),
        *launches(snapshot),
        *hang(snapshot, config.hang, config.silence),
        *slow_gangs(snapshot, config.straggler),
        *site_signals(snapshot, config.signals),
    ]
    found = not_before_its_switch(snapshot, block_faults_joined(snapshot, found))
    accused = {one.node for one in found if one.signal in ACCUSING and one.signal is not Signal.DRAIN_AT_JOB_END}
    suspected = {(one.node, SUSPICION_OF[one.signal]) for one in found if one.signal in SUSPICION_OF}
    silent = {one.node for one in found if one.signal is Signal.SILENT and snapshot.nodes[one.node].has_agent}
    found += stranded(snapshot, accused)
    found += faults_gone(snapshot, {one.node for one in found if one.signal in ACCUSING})
    return [
        one
        for one in found
        if one.signal is not Signal.CLEAN or (one.node not in silent and (one.node, one.suspicion) not in suspected)
    ]
