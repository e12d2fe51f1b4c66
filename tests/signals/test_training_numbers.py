"""Loss, gradient norm, tokens, MFU and step time of a job, through the whole control plane: metrics, API, finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.signals.virtual_fleet import Fleet
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.identity import Role
from understudy_wire.ranks import Training

pytestmark = pytest.mark.integration

SHOWN = Training(step=1, loss=2.5, grad_norm=0.4, tokens_per_second=1000.0, flops_per_token=1.978e11)
"""20 % of an H100."""


def test_they_are_in_the_metrics_for_the_job_and_in_the_api_for_each_rank(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, [f"n{number}" for number in range(1, 7)], 2)
    try:
        add_tokens(fleet.control_plane.engine, [])
        gang = fleet.submit(2, ranks_per_node=2, comment="understudy mfu=0.4", training=SHOWN)
        for _ in range(70):
            fleet.tick(10.0)
        client = TestClient(fleet.control_plane.app, headers=bearer(Role.VIEWER))
        metrics = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
        label = f'{{job_id="{gang.job_id}"}}'
        assert {
            name: float(metrics[f"understudy_job_{name}{label}"])
            for name in ("loss", "grad_norm", "tokens_per_second", "mfu_ratio", "step_seconds")
        } == {
            "loss": 2.5,
            "grad_norm": 0.4,
            "tokens_per_second": 4000.0,
            "mfu_ratio": pytest.approx(0.2),
            "step_seconds": 2.0,
        }
        for rank in client.get(f"/v1/jobs/{gang.job_id}/ranks").json()["items"]:
            shown = [rank[name] for name in ("loss", "grad_norm", "tokens_per_second", "mfu", "step_seconds")]
            assert shown == [2.5, 0.4, 1000.0, pytest.approx(0.2), 2.0]
        (slow,) = [one for one in fleet.decisions(0.0) if one["rule"] == "straggler.gang_mfu"]
        assert (slow["subject"], slow["table_row"]) == (f"job {gang.job_id}", 108)
        assert "its MFU is 20.0%, and 40.0% is expected" in slow["reason"]
    finally:
        fleet.close()
