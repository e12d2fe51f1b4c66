"""EYES: what looks wrong in a snapshot. Pure functions, one module a kind of fault.

Belongs here: `snapshot → findings`. Must not: what follows from a finding (`decide`), I/O, clock, randomness, logging.
"""

from __future__ import annotations

from controlplane.config import Config
from controlplane.detect.administration import administration, undrained
from controlplane.detect.corruption import corruption
from controlplane.detect.driver import silent_drivers
from controlplane.detect.fabric import ports
from controlplane.detect.gpu_state import gpu_state
from controlplane.detect.hang import hang
from controlplane.detect.hardware import hardware
from controlplane.detect.inventory import inventory
from controlplane.detect.launches import launches
from controlplane.detect.lemon import lemon
from controlplane.detect.prolog import drained_for_us
from controlplane.detect.seats import lost_seats
from controlplane.detect.silence import silence
from controlplane.detect.straggler import straggler
from controlplane.detect.stranded import stranded
from controlplane.detect.xid import xid
from controlplane.fleet.finding import ACCUSING, Finding, Signal
from controlplane.fleet.snapshot import Snapshot


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
