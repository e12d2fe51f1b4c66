"""Routes by which an agent gets the token of its node: `GET /v1/challenge` and `POST /v1/node-token`, without a token.

The agent signs the challenge with MUNGE as root. MUNGE proves that root of a host of the cluster made the credential;
the address of the request shows which host that is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import structlog
from fastapi import APIRouter, Request, Response

from understudy_controlplane.access.addresses import NodeAddresses, NotReadYet, TooManyNames
from understudy_controlplane.access.admission import Admission, Denied, address_of
from understudy_controlplane.access.challenges import Challenges
from understudy_controlplane.access.munge import Credential, CredentialRefused, MungeUnavailable
from understudy_controlplane.access.secret import new_token
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Identity, Permission, Role
from understudy_controlplane.ingest.answers import answer
from understudy_controlplane.ingest.node_token_notes import NodeTokenNotes
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.reports import read_body, wrong_version
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.tokens import TokenStore
from understudy_wire.messages import WIRE_VERSION, Challenge, NodeClaim, NodeToken, NodeTokenRequest
from understudy_wire.values import NOT_UNDERSTOOD

log = structlog.get_logger()

TOKEN_SECONDS = 3600.0
ENROLLED_SECONDS = 3 * 365 * 86_400.0
ROOT = 0
DECODED_AT_ONCE = 2
WAITING_PER_NODE_MAX = 4
TOKENS_PER_SECOND_PER_NODE = 1.0
"""Each is a row of the database for an hour. An agent gets one at its start and then two an hour."""

LOGGED_EVERY_SECONDS = 1.0

_request_decoder = msgspec.json.Decoder(NodeTokenRequest)
_claim_decoder = msgspec.json.Decoder(NodeClaim)


@dataclass(frozen=True, slots=True)
class NodeTokenDependencies:
    """`decode` is MUNGE's; it may block."""

    cluster: str
    challenges: Challenges
    decode: Callable[[str], Credential]
    addresses: NodeAddresses
    tokens: TokenStore
    admission: Admission
    clock: Clock
    notes: NodeTokenNotes


def node_tokens_router(deps: NodeTokenDependencies) -> APIRouter:
    router = APIRouter()
    issuer = Issuer(deps)

    @router.get("/v1/challenge")
    async def challenge(request: Request) -> Response:
        """What the next credential of an agent or a user must contain."""
        return answer(Challenge(deps.challenges.make(address_of(request))))

    @router.post("/v1/enrolment")
    async def enrolment(request: Request) -> Response:
        """The token of a node without MUNGE, for a one-time code."""
        identity = await deps.admission.admit(request, Permission.ENROL)
        return answer(await asyncio.to_thread(_exchange, deps, identity))

    @router.post("/v1/node-token")
    async def node_token(request: Request) -> Response:
        """A token for the node from whose address the request comes, for a credential that root made there."""
        body = await read_body(request)
        try:
            asked = _request_decoder.decode(body or b"")
        except NOT_UNDERSTOOD as error:
            raise Denied(
                400, f"the request cannot be read: {error}", "see agents/understudy_wire/messages.py"
            ) from error
        if asked.version != WIRE_VERSION:
            return wrong_version(asked.version)
        return answer(await issuer.issue(asked, address_of(request)))

    return router


def _exchange(deps: NodeTokenDependencies, identity: Identity) -> NodeToken:
    """Raises Denied."""
    node, now = identity.node, deps.clock.now()
    secret, token = new_token(Role.NODE, node, "enrolment", now, ENROLLED_SECONDS, node)
    entry = AuditEntry.of_request(identity, now, "enrol", f"node {node}", "")
    try:
        if not deps.tokens.exchange(identity.token, token, entry):
            raise Denied(403, f"the code is used up, or node {node} is barred", "`understudy token enroll` makes one")
    except StoreError as error:
        raise Denied(503, "the database does not answer", "ask again") from error
    return NodeToken(secret, ENROLLED_SECONDS)


class _NotReady(Denied):
    """Nothing speaks against the node: it is neither logged nor written into the audit."""


class Issuer:
    def __init__(self, deps: NodeTokenDependencies) -> None:
        self._deps = deps
        self._threads = ThreadPoolExecutor(DECODED_AT_ONCE, "munge")
        self._waiting: Counter[str] = Counter()
        self._rates = Rates(TOKENS_PER_SECOND_PER_NODE)
        self._logged_at = float("-inf")

    async def issue(self, asked: NodeTokenRequest, address: str) -> NodeToken:
        """Raises Denied."""
        claim = asked.claim
        try:
            await self._check_claim(claim, address)
            credential = await self._decode(asked)
            self._check_credential(credential, claim)
            return await asyncio.to_thread(self._make, claim.node)
        except _NotReady:
            raise
        except Denied as denied:
            self._note_refusal(claim.node, address, denied)
            raise
        except StoreError as error:
            raise Denied(503, "the database does not answer", "ask again") from error

    async def _check_claim(self, claim: NodeClaim, address: str) -> None:
        """What costs no process and no query comes first: any client may send this."""
        if not self._deps.challenges.is_valid(claim.challenge, address):
            raise Denied(403, "the challenge is not valid, or not any more", "get another one: GET /v1/challenge")
        if claim.cluster != self._deps.cluster:
            error = (
                f"node {claim.node} is of cluster {claim.cluster!r}; this control plane serves {self._deps.cluster!r}"
            )
            raise Denied(400, error, "set `cluster` in the agent's configuration to Slurm's ClusterName")
        try:
            addresses = await self._deps.addresses.of(claim.node)
        except NotReadYet:
            raise _NotReady(503, "the control plane has begun, and has not read Slurm yet", "ask again") from None
        except TooManyNames:
            raise Denied(503, "the addresses of nodes cannot be looked up now", "ask again") from None
        if addresses is None:
            name = self._deps.addresses.node_at(claim.node, address)
            remedy = f"set `node` in the agent's configuration to {name or 'the NodeName of slurm.conf'}"
            raise Denied(404, f"Slurm knows no node {claim.node!r}", remedy)
        if address not in addresses:
            error = f"the request comes from {address}, which is no address of node {claim.node}"
            raise Denied(403, error, "NodeAddr in slurm.conf, or server.node_addresses, names a node's addresses")

    async def _decode(self, asked: NodeTokenRequest) -> Credential:
        node = asked.claim.node
        if self._waiting[node] >= WAITING_PER_NODE_MAX:
            raise Denied(429, f"{WAITING_PER_NODE_MAX} credentials of node {node} wait already", "ask again")
        self._waiting[node] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._deps.decode, asked.credential)
        except MungeUnavailable as error:
            raise Denied(503, "MUNGE does not work on the control plane's host", "start munged there") from error
        except CredentialRefused as error:
            raise Denied(403, f"MUNGE refuses the credential: {error}", "see that the clocks agree") from error
        finally:
            self._waiting[node] -= 1
            if not self._waiting[node]:
                del self._waiting[node]

    def _check_credential(self, credential: Credential, claim: NodeClaim) -> None:
        if credential.user_id != ROOT:
            error = f"user {credential.user_id} made the credential, not root"
            raise Denied(403, error, "run the agent as root, or give it a token of its own: token_file")
        try:
            signed = _claim_decoder.decode(credential.payload)
        except NOT_UNDERSTOOD:
            signed = None
        if signed != claim or not self._deps.challenges.use(claim.challenge):
            raise Denied(403, "the credential is for another claim, or was used before", "make a new one")
        if not self._rates.admits(claim.node, self._deps.clock.monotonic()):
            hint = "use a token until half an hour before its end"
            raise Denied(429, f"node {claim.node} asks for too many tokens", hint)

    def _make(self, node: str) -> NodeToken:
        if self._deps.tokens.is_barred(node):
            hint = f"`understudy token allow {node}` ends that"
            raise Denied(403, f"the tokens of node {node} were revoked, and it gets no other", hint)
        secret, token = new_token(Role.NODE, node, "munge", self._deps.clock.now(), TOKEN_SECONDS, node)
        renewed = self._deps.tokens.add_for_node(token)
        self._deps.notes.note_token(node, renewed)
        return NodeToken(secret, TOKEN_SECONDS)

    def _note_refusal(self, node: str, address: str, denied: Denied) -> None:
        """One line a second: any client can cause them."""
        self._deps.notes.note_refusal(node, address, denied.error)
        now = self._deps.clock.monotonic()
        if now - self._logged_at >= LOGGED_EVERY_SECONDS:
            self._logged_at = now
            cause = str(denied.__cause__) if denied.__cause__ else ""
            log.warning("node_token_refused", node=node, error=denied.error, cause=cause)
