"""When a gang saves, on a real cluster: for a warning of the site, for a person, and before Slurm ends its job."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.acceptance import gang
from tests.acceptance.conftest import MakeSite
from tests.acceptance.launcher_job import LauncherJob
from tests.testbed.site import Site

pytestmark = pytest.mark.cluster


def post(site: Site, path: str, **body: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {site.operator_token_file.read_text()}"}
    return site.http.post(path, json=body, headers=headers)


def saved(site: Site) -> list[int]:
    """Steps, oldest first."""
    return sorted(one["step"] for one in site.items("/v1/checkpoints") if one["complete"])


def test_all_ranks_of_a_gang_save_when_it_is_ordered_and_continue_from_there(make_site: MakeSite) -> None:
    site = make_site(nodes=3, spares=1)
    gang.start_site(site)
    job = LauncherJob(site, nodes=2, spares=0, arguments="due")
    job.wait_for_launch(0, 0)
    save = f"/v1/jobs/{job.job}/save"

    def can_be_asked() -> bool:
        return post(site, save, reason="to see whether it can be asked", dry_run=True).is_success

    site.wait_for(can_be_asked, 60, "all ranks ask when to save")
    post(site, "/v1/signals", kind="leak", targets=["n2"], summary="wet floor").raise_for_status()
    site.wait_for(lambda: len(saved(site)) == 1, 60, "the gang saves for the warning")

    number = post(site, save, reason="before the power is switched off").json()["request"]
    site.wait_for(lambda: len(saved(site)) == 2, 60, "the gang saves for the person")
    request = site.get(f"/v1/requests/{number}")
    agreed = re.search(r"all ranks save before step (\d+)", str(request["why"]))
    assert request["status"] == "done" and agreed is not None
    assert saved(site)[1] == int(agreed[1])

    site.cluster.run("scontrol", "update", f"JobId={job.job}", "EndTime=now+75")
    site.wait_for(lambda: len(saved(site)) == 3, 60, "the gang saves before Slurm ends it")
    job.kill_rank(1, 0)
    job.wait_for_launch(0, 1)
    assert {one["from"] for one in job.starts(0, 1)} == {saved(site)[2]}
