"""A job runs on a node of which Slurm prints no record, or none that can be read: others are served as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.slurm import SlurmNode

pytestmark = pytest.mark.integration


def test_a_node_without_a_record_disturbs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(tmp_path)
    slurm, unknown = rehearsal.fake, rehearsal.gang_nodes()[0]
    all_nodes = slurm.nodes

    def nodes() -> list[SlurmNode]:
        return [one for one in all_nodes() if one.name != unknown]

    asked = TestClient(rehearsal.control_plane.app)
    add_tokens(rehearsal.control_plane.engine)
    body = {"reason": "x", "off": [unknown]}
    moved = asked.post(f"/v1/jobs/{rehearsal.gang}/move", json=body, headers=bearer(Role.ADMIN))
    assert moved.status_code == 202, moved.text
    monkeypatch.setattr(slurm, "nodes", nodes)
    rehearsal.silent.add(unknown)  # its reports are refused
    plane = rehearsal.control_plane
    with_errors = TestClient(plane.app, raise_server_exceptions=False)
    pages = ("/v1/status", "/v1/jobs", f"/v1/nodes/{unknown}", "/dashboard", "/metrics", "/v1/topology")
    gang, other = rehearsal.gang, rehearsal.gang_nodes()[1]
    of_job = (f"/v1/jobs/{gang}", f"/v1/explain/jobs/{gang}", f"/v1/spares/explain/{gang}", f"/dashboard/jobs/{gang}")
    for seconds, fault in ((20, ""), (60, other)):
        if fault:
            rehearsal.fail(fault)
        rehearsal.run(seconds)
        assert plane.loop.pulse.last_error == ""
        failed = [
            path for path in (*pages, *of_job) if with_errors.get(path, headers=bearer(Role.VIEWER)).status_code >= 500
        ]
        assert failed == []
        move = with_errors.post(f"/v1/jobs/{gang}/move?dry_run=true", json={"reason": "x"}, headers=bearer(Role.ADMIN))
        assert move.status_code < 500, move.text
