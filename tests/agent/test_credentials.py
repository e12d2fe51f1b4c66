"""How the agent gets the token of its node by MUNGE."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from understudy_agent.credentials import Ask, MungeCredentials, RefusedError
from understudy_wire.messages import WIRE_VERSION, Challenge, NodeClaim, NodeToken, NodeTokenRequest


class ControlPlane:
    def __init__(self, seconds: float = 3600.0) -> None:
        self.seconds = seconds
        self.challenges = 0
        self.asked: list[NodeTokenRequest] = []
        self.refusal = ""

    async def ask(self, method: str, path: str, body: bytes | None) -> bytes:
        await asyncio.sleep(0)
        if self.refusal:
            raise RefusedError(self.refusal)
        if (method, path) == ("GET", "/v1/challenge"):
            self.challenges += 1
            return msgspec.json.encode(Challenge(f"c{self.challenges}"))
        assert (method, path) == ("POST", "/v1/node-token")
        assert body is not None
        self.asked.append(msgspec.json.decode(body, type=NodeTokenRequest))
        return msgspec.json.encode(NodeToken(f"token-{len(self.asked)}", self.seconds))


def signed(claim: bytes) -> str:
    return f"signed {claim.decode()}"


def credentials(sign: Callable[[bytes], str] = signed) -> MungeCredentials:
    return MungeCredentials("c", "n1", sign)


def renew(own: MungeCredentials, ask: Ask) -> bool:
    return asyncio.run(own.renew(own.token, ask))


def test_root_signs_the_challenge_with_the_name_of_its_node() -> None:
    plane, own = ControlPlane(), credentials()
    assert renew(own, plane.ask)
    claim = NodeClaim("c", "n1", "c1")
    assert plane.asked == [NodeTokenRequest(WIRE_VERSION, claim, signed(msgspec.json.encode(claim)))]
    assert (own.token, own.is_due()) == ("token-1", False)


def test_the_next_token_is_asked_for_while_this_one_is_valid() -> None:
    plane, own = ControlPlane(seconds=0.0), credentials()
    assert not own.is_due(), "the first request asks for the first token"
    renew(own, plane.ask)
    assert own.is_due()


def test_requests_that_are_refused_together_ask_once() -> None:
    plane, own = ControlPlane(), credentials()

    async def together() -> list[bool]:
        return list(await asyncio.gather(*(own.renew("", plane.ask) for _ in range(5))))

    assert asyncio.run(together()) == [True] * 5
    assert len(plane.asked) == 1


@pytest.mark.parametrize("error", [OSError("munge: no munged"), RefusedError("403")])
def test_a_failure_is_logged_once_and_not_tried_again_at_once(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    plane, calls = ControlPlane(), []

    def fail(claim: bytes) -> str:
        calls.append(claim)
        raise error

    own = credentials(fail)
    assert [renew(own, plane.ask) for _ in range(3)] == [False] * 3
    assert (len(calls), own.token, len(caplog.records)) == (1, "", 1)


def test_a_token_that_cannot_be_renewed_yet_is_kept() -> None:
    plane, own = ControlPlane(seconds=0.0), credentials()
    renew(own, plane.ask)
    plane.refusal = "HTTP 503"
    assert not renew(own, plane.ask)
    assert (own.token, own.is_due()) == ("token-1", False)
