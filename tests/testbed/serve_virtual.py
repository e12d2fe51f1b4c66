"""`understudy serve` with a virtual Slurm of its own: processes of control planes, without a cluster."""

from __future__ import annotations

from tests.simulator.slurm import VirtualSlurm
from tests.testbed.serve import config_in_arguments, load
from understudy_controlplane.app import Outside
from understudy_controlplane.serve import LeadLost, serve

if __name__ == "__main__":
    try:
        serve(*config_in_arguments(), Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True), load)
    except LeadLost as error:
        raise SystemExit(str(error)) from error
