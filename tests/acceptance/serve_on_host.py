"""`understudy serve` on a host whose clock is wrong: the first argument, in seconds. The second one is after how many
seconds it may pass the lead on.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.bench.ha_side import ShiftedClock
from tests.testbed.serve import config_in_arguments, load
from understudy_controlplane.lease import Leadership
from understudy_controlplane.serve import LeadLost, real_outside, serve

if __name__ == "__main__":
    ahead_seconds, Leadership.settled_seconds = float(sys.argv[1]), float(sys.argv[2])
    config, path = config_in_arguments()
    try:
        serve(config, path, replace(real_outside(config), clock=ShiftedClock(ahead_seconds)), load)
    except LeadLost as error:
        raise SystemExit(str(error)) from error
