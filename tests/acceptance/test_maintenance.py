"""Maintenance on a real cluster: the gang leaves at a checkpoint, the node is worked on, and comes back."""

from __future__ import annotations

import time

import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import LauncherJob

pytestmark = pytest.mark.cluster


def test_a_gang_leaves_a_node_at_its_checkpoint_and_the_node_comes_back(make_site: MakeSite) -> None:
    site = make_site(nodes=4, spares=1)
    gang.start_site(site)
    job = LauncherJob(site, nodes=2, spares=0)
    assert job.wait_for_launch(0, 0) == ["n1", "n2"]
    headers = {"Authorization": f"Bearer {site.operator_token_file.read_text()}"}

    def ask(path: str = "", **body: object) -> int:
        answer = site.http.post(f"/v1/maintenance{path}", json={"reason": "firmware", **body}, headers=headers)
        answer.raise_for_status()
        return int(answer.json()["maintenance"][0]["id"] if not path else 0)

    def stages() -> list[str]:
        found = site.http.get("/v1/maintenance").json()["maintenance"]
        return [node["stage"] for one in found for node in one["nodes"]]

    begun = time.time()
    number = ask(targets=["n2"], until=time.time() + 900)
    site.wait_for(lambda: stages() == ["ready"], 90, "no job is on the node any more")
    job.wait_for_launch(1, 0)
    starts = job.starts(1, 0)
    assert {one["node"] for one in starts} == {"n1", "n4"}, "the spare has its seat"
    steps = {one["from"] for one in starts}
    assert len(steps) == 1 and min(steps) > 0, "both ranks go on from the same checkpoint"
    files = [job.home / f"checkpoint-{min(steps)}" / f"rank-{rank}" for rank in (0, 1)]
    assert min(file.stat().st_mtime for file in files) > begun, "one that was written since it was asked to leave"
    assert site.node("n2")["state"] == "operator_hold"
    assert site.items("/v1/incidents") == []
    ask(f"/{number}/end")
    site.wait_for(lambda: site.node("n2")["state"] == "in_service", 60, "the node is back")
    site.wait_for(lambda: site.node("n2")["slurm"]["flags"] == [], 60, "Slurm uses it again")
    assert stages() == []
    job.assert_trained()
