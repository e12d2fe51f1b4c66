"""What ranks showed before they were ended: only operators and the job's owner read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.dashboard.site import played
from tests.recover.rehearsal import Rehearsal
from tests.recover.test_launcher import report
from tests.tokens import as_user, bearer
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store.queries import Queries
from understudy_wire.facts import EvidenceKind, LaunchEvidence

pytestmark = pytest.mark.integration

HANG = "rank 3 on n4 did not enter collective 12"


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    made = played(tmp_path_factory.mktemp("evidence"))
    at = Queries(made.control_plane.engine).incidents(1)[0]["fault_at"]
    wrote = {"at": at, "summary": "rank 2 wrote last: \x1b]0;owned\x07", "text": "=== rank 2\nline 1\n\ttab\x9b2J\n"}
    report(made, LaunchEvidence(1, 1, 0, EvidenceKind.HANG, at, HANG, "=== ranks 3 (n4)\nin train.py"))
    report(
        made, LaunchEvidence(1, 1, 1, EvidenceKind.CRASH, **wrote), LaunchEvidence(1, 1, 1, EvidenceKind.CRASH, **wrote)
    )
    yield made
    made.control_plane.close()


def client(rehearsal: Rehearsal, headers: dict[str, str]) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=headers)


def owner_of(rehearsal: Rehearsal) -> int:
    return next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == 1)


def test_the_owner_and_operators_read_it(rehearsal: Rehearsal) -> None:
    owner = as_user(rehearsal.control_plane.admission, owner_of(rehearsal))
    for headers in (owner, bearer(Role.OPERATOR), bearer(Role.ADMIN)):
        for path in ("/v1/jobs/1/evidence", "/v1/incidents/1/evidence"):
            crash, hang = client(rehearsal, headers).get(path).json()["items"]
            assert (hang["kind"], hang["summary"], hang["text"]) == ("hang", HANG, "=== ranks 3 (n4)\nin train.py")
            assert crash["launch"] == 1
            assert crash["summary"] == "rank 2 wrote last: \N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}"
            assert crash["text"] == "=== rank 2\nline 1\n\ttab\N{REPLACEMENT CHARACTER}2J\n"


def test_other_users_and_those_who_only_read_do_not(rehearsal: Rehearsal) -> None:
    other = client(rehearsal, as_user(rehearsal.control_plane.admission, owner_of(rehearsal) + 1))
    viewer = client(rehearsal, bearer(Role.VIEWER))
    for path in ("/v1/jobs/1/evidence", "/v1/incidents/1/evidence"):
        assert other.get(path).status_code == 404
        assert viewer.get(path).status_code == 403
        assert client(rehearsal, {}).get(path).status_code == 401
    post_mortem = viewer.get("/v1/incidents/1/post-mortem?format=text").text
    assert f"what its ranks were doing is kept: {HANG}" in post_mortem
    assert "`understudy incident show 1 --evidence`" in post_mortem
    assert "wrote last:" not in post_mortem
    assert "train.py" not in post_mortem


def test_what_there_is_not_is_not_found(rehearsal: Rehearsal) -> None:
    operator = client(rehearsal, bearer(Role.OPERATOR))
    assert operator.get("/v1/jobs/77/evidence").status_code == 404
    assert operator.get("/v1/incidents/77/evidence").status_code == 404
