"""EYES: what looks wrong in a snapshot. Pure functions, one module a kind of fault.

Belongs here: `snapshot → findings`. Must not: what follows from a finding (`decide`), I/O, clock, randomness, logging.
"""

from __future__ import annotations

from understudy_controlplane.config import Config
from understudy_controlplane.detect.administration import administration, undrained
from understudy_controlplane.detect.corruption import corruption
from understudy_controlplane.detect.driver import silent_drivers
from understudy_controlplane.detect.fabric import ports
from understudy_controlplane.detect.gpu_state import gpu_state
from understudy_controlplane.detect.hang import hang
from understudy_controlplane.detect.hardware import hardware
from understudy_controlplane.detect.inventory import inventory
from understudy_controlplane.detect.launches import launches
from understudy_controlplane.detect.lemon import lemon
from understudy_controlplane.detect.prolog import drained_for_us
from understudy_controlplane.detect.seats import lost_seats
from understudy_controlplane.detect.silence import silence
from understudy_controlplane.detect.straggler import straggler
from understudy_controlplane.detect.stranded import stranded
from understudy_controlplane.detect.xid import xid
from understudy_controlplane.fleet.finding import ACCUSING, Finding, Signal
from understudy_controlplane.fleet.snapshot import Snapshot


def detect(snapshot: Snapshot, config: Config) -> list[Finding]:
    """All findings of this moment. What is still so is found again at the next."""
    found = [
        *administration(snapshot),
        *drained_for_us(snapshot),
        *xid(snapshot, config.xid),
        *gpu_state(snapshot),
        *hardware(snapshot, config.hardware),
        *silent_drivers(snapshot, config.hardware),
        *ports(snapshot, config.hardware),
        *silence(snapshot, config.silence),
        *undrained(snapshot),
        *lost_seats(snapshot),
        *straggler(snapshot, config.straggler, probed=config.probes_suspects),
        *corruption(snapshot),
        *lemon(snapshot, config.lemon),
        *inventory(snapshot),
        *launches(snapshot),
        *hang(snapshot, config.hang, config.silence),
    ]
    accused = {one.node for one in found if one.signal in ACCUSING and one.signal is not Signal.DRAIN_AT_JOB_END}
    suspected = {one.node for one in found if one.signal in (Signal.HEALTH_SUSPECTED, Signal.CORRUPTION_SUSPECTED)}
    found += stranded(snapshot, accused)
    # A node is clean when nobody suspects it, not when one of several does no longer; silence clears nobody.
    suspected |= {one.node for one in found if one.signal is Signal.SILENT and snapshot.nodes[one.node].has_agent}
    return [one for one in found if one.signal is not Signal.CLEAN or one.node not in suspected]
