"""A person reports a fault: drain, gang to a spare, repair, validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.fleet.recovery import RecoveryStatus

pytestmark = pytest.mark.integration


def test_the_whole_path_in_a_pause_and_over_a_restart(tmp_path: Path) -> None:
    validation = {"enabled": True, "probation_hours": 0}
    rehearsal = Rehearsal(tmp_path, validation=validation, repair={"enabled": True, "reboot": True})
    now, stores = rehearsal.clock.now(), rehearsal.control_plane.stores
    stores.requests.ask(Verb.PAUSE, FLEET, "a person looks", "alice", now)
    stores.requests.ask(Verb.QUARANTINE, "n2", "it smells", "alice", now)
    rehearsal.run_until(rehearsal.recoveries)
    rehearsal.restart_control_plane()
    rehearsal.run_until(lambda: "n2" not in rehearsal.gang_nodes() and rehearsal.gang_state() == ("RUNNING", 1))
    incident = next(iter(rehearsal.control_plane.stores.incidents.open_incidents().values()))
    assert (incident.rule, incident.summary) == ("operator.quarantine", "alice reports a fault: it smells")
    assert rehearsal.state_of("n2") is NodeState.QUARANTINED, "a pause begins no repair"
    rehearsal.control_plane.stores.requests.ask(Verb.RESUME, FLEET, "seen", "alice", rehearsal.clock.now())
    rehearsal.run_until(lambda: rehearsal.state_of("n2") is NodeState.IN_SERVICE, 3600)
    assert rehearsal.line.effects["reboot_node n2"] == 1
    assert rehearsal.recoveries()[0].status is RecoveryStatus.SUCCEEDED
    assert rehearsal.control_plane.stores.incidents.open_incidents() == {}
