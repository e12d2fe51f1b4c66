"""A control plane whose pages are looked at: a fleet in racks with nodes in every state, and a recovery that has been
carried out on a virtual cluster. Its loop does not run: a test sets what the fleet looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests import builders as b
from tests.api.test_routes import play, record, shard
from tests.notify.site import keep_messages
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, secret
from understudy_controlplane.app import ControlPlane
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.topology import Domain, DomainKind, Topology
from understudy_wire.facts import Tier, TrainingInputs
from understudy_wire.hardware import Gpu

RACK_NODES = 16
COOKIE = "understudy_session"
HOSTILE = '<img src=x onerror="document.title=1">&\'"'
EXTRAORDINARY = (
    *(NodeState.SUSPECT, NodeState.SUSPECT, NodeState.QUARANTINED, NodeState.UNKNOWN, NodeState.MANUAL_REPAIR),
    *(NodeState.REPAIRING, NodeState.VALIDATING, NodeState.PROBATION, NodeState.FOREIGN_DRAIN),
    *(NodeState.OPERATOR_HOLD, NodeState.RETIRED, NodeState.PROBATION),
)


def played(directory: Path, **config: Any) -> Rehearsal:
    """A gang with the hook: checkpoint at step 20, lost at step 29, back on a spare; then a node waits for a person."""
    rehearsal = Rehearsal(directory, **config)
    add_tokens(rehearsal.control_plane.engine, ["n1"])
    rehearsal.gpus |= {name: [_gpu(index) for index in range(8)] for name in ("n1", "n2", "n3", "n4")}
    play(rehearsal, attempt=0, first=0, last=29)
    now = rehearsal.clock.now()
    measured = {"at": now, "blocked_seconds": 2.0, "write_seconds": 9.0, "tier": Tier.SHARED}
    shards = (*(shard(rank, 20) for rank in range(4)), *(shard(rank, 24) for rank in range(2)))
    record(rehearsal, *(msgspec.structs.replace(one, **measured) for one in shards))
    rehearsal.run(3)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(1)
    record(rehearsal, *(TrainingInputs(1, attempt, 0, 4, f"commit {attempt}", data=HOSTILE) for attempt in (0, 1)))
    play(rehearsal, attempt=1, first=20, last=60)
    rehearsal.run_until(rehearsal.ended)
    return rehearsal


def _gpu(index: int) -> Gpu:
    shown: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "serial": f"16531230{index:05}",
        "temperature_celsius": 54 + index,
    }
    return b.gpu(index, uuid=f"GPU-{index}", power_watts=612.0 + index, ecc_uncorrected=0, pcie_width=16, **shown)


def open_tickets(rehearsal: Rehearsal) -> None:
    """One that waits for a person, and a page; and messages."""
    tickets, now = rehearsal.control_plane.stores.tickets, rehearsal.clock.now()
    of_provider: dict[str, Json] = {"asked": "replace", "error": f"exit code 1: {HOSTILE}"}
    body: dict[str, Json] = {"node": "n3", "reason": f"all repairs have failed {HOSTILE}", "provider": of_provider}
    tickets.open_ticket("n3-1", "n3", body, now)
    about: list[Json] = [f"n{number}" for number in range(1, 9)]
    tickets.open_ticket("held-1", "n1", {"node": "n1", "about": about, "reason": "8 held back"}, now, closed=True)
    keep_messages(rehearsal.control_plane.stores.notices, now, f"node n3: hardware fault {HOSTILE}")


def enlarge(plane: ControlPlane, racks: int, states: Mapping[str, NodeState] | None = None) -> None:
    """The fleet of the snapshot, with further racks of nodes."""
    snapshot = plane.loop.pulse.snapshot
    assert snapshot is not None
    now = snapshot.now
    names = [f"r{rack:02}n{seat:02}" for rack in range(1, racks + 1) for seat in range(1, RACK_NODES + 1)]
    chosen = dict(zip(names[7::11], EXTRAORDINARY, strict=False)) if states is None else states
    more = {name: a_node(name, chosen.get(name, NodeState.IN_SERVICE), now) for name in names}
    jobs = {}
    for number, first in enumerate(range(0, int(len(names) * 0.75), 64)):
        busy = [name for name in names[first : first + 64] if more[name].state is NodeState.IN_SERVICE]
        job = b.job(job_id=100 + number, nodes=busy)
        jobs[job.key] = job
    domains = [
        Domain(DomainKind.RACK, f"r{rack:02}", tuple(names[(rack - 1) * RACK_NODES : rack * RACK_NODES]))
        for rack in range(1, racks + 1)
    ]
    everyone = [*snapshot.topology.domains, *domains]
    plane.loop.pulse.snapshot = replace(
        snapshot, nodes={**snapshot.nodes, **more}, jobs={**snapshot.jobs, **jobs}, topology=Topology(tuple(everyone))
    )


def a_node(name: str, state: NodeState, now: float) -> NodeView:
    reason = "" if state is NodeState.IN_SERVICE else f"understudy: {state.value} for this test {HOSTILE}"
    slurm = b.slurm_node(name, reason=reason)
    return b.node(name, state, slurm, now - 0.5, record=b.record(name, state, since=now - 7000.0))


def set_state(plane: ControlPlane, name: str, state: NodeState) -> None:
    """Sets what a round of the loop would show."""
    snapshot = plane.loop.pulse.snapshot
    assert snapshot is not None
    nodes = {**snapshot.nodes, name: a_node(name, state, snapshot.now)}
    plane.loop.pulse.snapshot = replace(snapshot, nodes=nodes, now=snapshot.now + 1.0)


def session(url: str, role: Role = Role.OPERATOR) -> dict[str, str]:
    """The cookie of a browser that has logged in."""
    body, own_page = {"token": secret(role)}, {"Sec-Fetch-Site": "same-origin"}
    answer = httpx.post(f"{url}/v1/session", json=body, headers=own_page, trust_env=False)
    assert answer.status_code == 200, answer.text
    value = answer.cookies.get(COOKIE)
    assert value is not None
    return {COOKIE: value}


def nodes_of(names: Sequence[str], state: NodeState, now: float = b.NOW) -> dict[str, NodeView]:
    return {name: a_node(name, state, now) for name in names}
