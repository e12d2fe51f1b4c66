"""Every operation of the OpenAPI document, with a token of each role and with none: whatever a client sends, the answer
is no error of the server, and a refusal names its cause.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import REPOSITORY
from tests.fuzz.openapi import NO_TOKEN, headers_of, plane_without_rates
from tests.tokens import bearer
from understudy_controlplane.api.openapi import ANSWERED, LISTED, describe
from understudy_controlplane.app import ControlPlane
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.ingest.answers import CODES, ErrorCode
from understudy_wire.messages import Refusal

pytestmark = pytest.mark.integration

OPEN_TO_ALL = {"/healthz", "/readyz", "/v1/challenge"}
SHARE = 0.3
"""Share of the examples of a profile: each role has its own."""
ODD_TEXT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "n1", "0", "1", "-1", "9" * 30, "1e99_1", "1.5_7", "true", "\0", "..", "%2e%2e/", "\u00b2"]),
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=10),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
BODIES = st.one_of(
    st.binary(max_size=40),
    st.fixed_dictionaries({"reason": st.one_of(JSON, st.text())}, optional={"now": JSON, "x": JSON}),
    JSON,
)


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    answers: dict[str, Any]


@dataclass(frozen=True)
class Plane:
    client: TestClient
    operations: tuple[Operation, ...]
    control_plane: ControlPlane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_without_rates(tmp_path_factory.mktemp("openapi")) as made:
        operations = tuple(
            Operation(method.upper(), path, tuple(operation.get("parameters", ())), operation["responses"])
            for path, methods in describe(made.app.openapi())["paths"].items()
            for method, operation in methods.items()
        )
        assert len(operations) > 20
        yield Plane(TestClient(made.app, raise_server_exceptions=False), operations, made)


def send(plane: Plane, operation: Operation, data: st.DataObject, headers: dict[str, str]) -> httpx2.Response:
    path, query = operation.path, {}
    for parameter in operation.parameters:
        name = parameter["name"]
        if parameter["in"] == "path":
            value = data.draw(ODD_TEXT.filter(lambda text: text not in ("", ".", "..")), label=name)
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        elif data.draw(st.booleans()):
            query[name] = data.draw(ODD_TEXT, label=name)
    if data.draw(st.sampled_from([True, *[False] * 9])):
        query[data.draw(st.text(max_size=5), label="unknown parameter")] = "x"
    body = data.draw(BODIES, label="body") if operation.method == "POST" else None
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    return plane.client.request(operation.method, path, params=query, headers=headers, **content)


def assert_documented(operation: Operation, answer: httpx2.Response) -> None:
    """Its status, its media type, and its model, where it has one."""
    media_type = answer.headers["content-type"].partition(";")[0]
    assert media_type in operation.answers[str(answer.status_code)]["content"]
    if operation.path in ANSWERED:
        msgspec.json.decode(answer.content, type=ANSWERED[operation.path])
    if operation.path in LISTED:
        for record in msgspec.json.decode(answer.content)["items"]:
            msgspec.convert(record, type=LISTED[operation.path])


@pytest.mark.parametrize("path", ["/metrics", "/v1/status", "/v1/nodes", "/healthz", "/v1/decisions"])
def test_what_is_read_most_is_answered_as_documented(plane: Plane, path: str) -> None:
    (operation,) = (one for one in plane.operations if (one.method, one.path) == ("GET", path))
    assert_documented(operation, plane.client.get(path, headers=bearer(Role.VIEWER)))


@pytest.mark.parametrize("role", [None, *Role])
def test_no_request_makes_the_server_fail(plane: Plane, role: Role | None) -> None:
    headers = headers_of(role.value if role else NO_TOKEN, plane.control_plane, "testclient")

    @given(st.data())
    @settings(max_examples=int(settings().max_examples * SHARE))
    def run(data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(plane.operations))
        answer = send(plane, operation, data, headers)
        assert answer.status_code < 500, f"{answer.status_code} {answer.text}"
        if answer.status_code >= 400:
            problem = msgspec.json.decode(answer.content, type=Refusal)
            assert answer.headers["content-type"] == "application/problem+json"
            assert problem.detail, "a refusal names its cause"
            assert (problem.status, ErrorCode(problem.code)) == (answer.status_code, problem.code)
        else:
            assert role is not None or operation.path in OPEN_TO_ALL
            assert_documented(operation, answer)

    run()


def test_the_documents_name_every_code_of_a_refusal_with_its_status() -> None:
    text = (REPOSITORY / "docs" / "api.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `") and line.count("|") == 4]
    status_of = {code.strip().strip("`"): status.strip() for codes, status in rows for code in codes.split(",")}
    for status, code in CODES.items():
        assert status_of.get(code) == str(status), code
    assert set(ErrorCode) <= status_of.keys()


def test_the_document_has_models_for_bodies_and_answers_groups_and_who_may_ask(plane: Plane) -> None:
    described = plane.client.get("/openapi.json", headers=bearer(Role.VIEWER)).json()
    models, groups = described["components"]["schemas"], {group["name"] for group in described["tags"]}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert set(operation["tags"]) <= groups
            assert operation["responses"]["default"]["content"]["application/problem+json"]["schema"] == {
                "$ref": "#/components/schemas/Refusal"
            }
            gives_one = method == "post" and path in {"/v1/node-token", "/v1/user-token", "/v1/session"}
            assert bool(operation["security"]) == (path not in OPEN_TO_ALL and not gives_one), path
            if method == "get" and path.startswith("/v1/"):
                assert "$ref" in json.dumps(operation["responses"]["200"]), f"{path} has no model"
            if method == "post" and path != "/v1/enrolment":
                assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"], path
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert named <= models.keys()
    hold = described["paths"]["/v1/nodes/{node}/hold"]["post"]
    assert hold["responses"]["202"]["content"]["application/json"]["schema"]["$ref"].endswith("/Accepted")
    assert models["HoldBody"]["examples"] == [{"reason": "new cables", "dry_run": False, "for_seconds": 14400.0}]
