"""EYES: what looks wrong in a snapshot. Pure functions, one module a kind of fault.

Belongs here: `snapshot → findings`. Must not: what follows from a finding (`decide`), I/O, clock, randomness, logging.
"""

from __future__ import annotations

from controlplane.config import Config
from controlplane.detect.administration import administration, undrained
from controlplane.detect.gpu_state import gpu_state
from controlplane.detect.prolog import drained_for_us
from controlplane.detect.seats import lost_seats
from controlplane.detect.silence import silence
from controlplane.detect.straggler import straggler
from controlplane.detect.stranded import stranded
from controlplane.detect.xid import xid
from controlplane.fleet.finding import Finding
from controlplane.fleet.snapshot import Snapshot


def detect(snapshot: Snapshot, config: Config) -> list[Finding]:
    """All findings of this moment. What is still so is found again at the next."""
    return [
        *administration(snapshot),
        *drained_for_us(snapshot),
        *xid(snapshot),
        *gpu_state(snapshot),
        *silence(snapshot, config.silence),
        *undrained(snapshot),
        *lost_seats(snapshot),
        *stranded(snapshot),
        *straggler(snapshot, config.straggler),
    ]
