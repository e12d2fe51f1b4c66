"""What breaks, and how it is made whole again.

Belongs here: the faults, as the node, its agent and the job on it meet them. Must not: who recovers from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.testbed import fake_nvml
from tests.testbed.cluster import ClusterError
from tests.testbed.site import Site

SLOW = 1.5
HANG_SECONDS_MAX = 10.0

KILLED_NODE, DEAD_NODE = "killed_node", "dead_node"

Inject = Callable[[Site, Path, str], float]
"""Break the node under the job in that directory; returns when it broke."""


def xid(site: Site, home: Path, node: str) -> float:
    """Xid 79: the driver logs it, NVML loses the GPU, and the rank there fails at its next kernel."""
    at = site.nodes[node].fail_gpu()
    (home / "faults" / node).write_text("lost")
    return at


def crash(site: Site, home: Path, node: str) -> float:
    """A rank ends with an error, once. No hardware is at fault."""
    at = time.time()
    (home / "faults" / node).write_text("crash")
    return at


def killed_node(site: Site, home: Path, node: str) -> float:
    """All processes of the node are gone at once. Its kernel resets connections: kinder than life, to all sides."""
    return site.kill_node(node)


def dead_node(site: Site, home: Path, node: str) -> float:
    """The node's power is gone. No connection is reset, nothing comes back any more."""
    return site.power_off(node)


def hang(site: Site, home: Path, node: str) -> float:
    """A rank stops before its next collective, once; the others wait for it in their collective."""
    (home / "faults" / node).write_text("hang")
    deadline = time.monotonic() + HANG_SECONDS_MAX
    while not (found := list((home / "faults").glob("hung-*"))):
        if time.monotonic() > deadline:
            raise ClusterError(f"the rank on {node} does not hang: does it train?")
        time.sleep(0.01)
    return float(found[0].name.partition("-")[2])


def straggler(site: Site, home: Path, node: str) -> float:
    """A GPU throttles for heat: its rank takes half as long again for every step, and so does the gang."""
    at = site.nodes[node].throttle_gpu(share=1 / SLOW)
    (home / "faults" / node).write_text(f"slow {SLOW}")
    return at


FAULTS: Mapping[str, Inject] = {
    "xid": xid,
    KILLED_NODE: killed_node,
    DEAD_NODE: dead_node,
    "hang": hang,
    "straggler": straggler,
    "crash": crash,
}


def repair(site: Site, node: str) -> None:
    """Its GPU works again. A dead node stays dead."""
    site.nodes[node].gpus.write(fake_nvml.h100_node(node))


def all_whole(site: Site) -> bool:
    """Asked again and again: what Slurm has against a node meanwhile is taken back each time."""
    done = site.cluster.run("sinfo", "--noheader", "--Node", "--format=%N %T")
    states = dict(line.split() for line in done.stdout.splitlines() if line)
    for node, state in states.items():
        if any(word in state for word in ("drain", "down", "*")):
            site.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    idle = all(state in ("idle", "reserved") for state in states.values())
    if not idle or not site.control_plane_runs():
        return idle
    return all(one["state"] == "in_service" for one in site.items("/v1/nodes"))
