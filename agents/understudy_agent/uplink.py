"""The connection to the control plane: sends reports; facts stay queued until they are acknowledged.

Tries the control planes of the list in turn, beginning with the one that answered last. The telemetry of a report that
fails is lost; its facts go into the next one. An answer of a control plane that this agent does not follow counts as
none (`leaders.py`); now and then it asks the others on its list who leads, so that both of two that lead notice it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx
import msgspec

from understudy_agent.config import ConfigError, Tls
from understudy_agent.credentials import Ask, Credentials, RefusedError
from understudy_agent.facts import FactQueue
from understudy_agent.leaders import Leaders
from understudy_agent.log import UnknownNames, fields, log
from understudy_agent.refusals import describe
from understudy_wire.facts import Fact
from understudy_wire.launcher import LauncherAnswer, LauncherReport
from understudy_wire.leader import LEADER_HEADER
from understudy_wire.messages import FACTS_PER_REPORT_MAX, REPORT_BYTES_MAX, Acknowledgement, Report, RestorePoint
from understudy_wire.unknown import unknown_in
from understudy_wire.values import EPOCH_SECONDS_MAX, NOT_UNDERSTOOD

REQUEST_TIMEOUT_SECONDS = 5.0
"""A control plane counts as not answering after it."""
PROMPT_SECONDS = 1.0
"""Time that each of several control planes has at first: its host may be gone, or its process frozen. A slow one gets
twice the time that it took, and while none answers, each gets twice as long every time.
"""
PATIENCE_FALLS_TO = 0.9
"""Each answer that came sooner lets it fall by that: the next one may take as long as those before."""
LOOK_SECONDS = 30.0
"""Interval at which the other control planes of the list are asked who leads. One that stands by refuses at once."""
RESTORE_POINT_WAIT_SECONDS = 30.0
RESTORE_POINT_RETRY_SECONDS = 0.25

# Refusals that do not depend on the report's content: a wrong token, an unknown node, too many requests.
_TRANSIENT = {401, 404, 408, 425, 429}

FAILURES_BEFORE_NARROWING = 3
"""A control plane that cannot take a report now can usually take the next one."""

_OF_THE_NODE = ("/v1/reports", "/v1/challenge", "/v1/node-token")
"""Requests that the agent makes for itself. The others it makes for users' programs."""

Answer = TypeVar("Answer", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def patience_after(before: float, took: float) -> float:
    return max(2 * took, PATIENCE_FALLS_TO * before, PROMPT_SECONDS)


def _without_telemetry(report: Report) -> Report:
    """Only the identity of the report: nothing that a control plane of another release might not know."""
    return Report(
        version=report.version,
        cluster=report.cluster,
        node=report.node,
        boot_id=report.boot_id,
        sequence=report.sequence,
        agent_started_at=report.agent_started_at,
        sent_at=report.sent_at,
        driver_version=report.driver_version,
        release=report.release,
    )


@dataclass(frozen=True, slots=True)
class RestorePointRequest:
    """Asks from which checkpoint this attempt of the job continues. Only its owner and root get an answer."""

    job_id: int
    restart_count: int
    launch: int
    user_id: int  # of the process that asks, from the kernel
    if_managed: bool = False  # for a job that Understudy does not manage the answer is "not managed"
    looks: bool = False  # the rank that asks can look whether the checkpoint is there
    run: str = ""
    run_folder: str = ""
    arguments: str = ""
    world_size: int = 0  # of the rank that asks; 0: no rank asks
    rank: int = -1

    def query(self) -> str:
        """Fields that have their default are left out."""
        values = {
            one.name: getattr(self, one.name)
            for one in dataclasses.fields(self)
            if getattr(self, one.name) != one.default
        }
        return urlencode({name: "true" if value is True else value for name, value in values.items()})


class RestorePointError(Exception):
    """No restore point was received; the message has the cause."""

    def __init__(self, message: str, final: bool = False) -> None:
        """`final`: the control plane answered that it names none; to ask again changes nothing."""
        super().__init__(message)
        self.final = final


class UnreachableError(Exception):
    """No control plane accepted the request; its content is not the cause. The message has the cause."""


class FailedError(UnreachableError):
    """A control plane answered that it cannot take the request now: its content may be the cause."""


class RejectedError(Exception):
    """A control plane read the request and refused it; the message has its answer."""


class NotFollowedError(httpx.HTTPError):
    """An answer that does not count."""


class Uplink:
    """Sends one report at a time; restore points can be requested meanwhile."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each there once
        self,
        urls: Sequence[str],
        credentials: Credentials,
        facts: FactQueue,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        on_acknowledged: Callable[[Acknowledgement], None] = lambda _: None,
        tls: Tls | None = None,
        to_look: Credentials | None = None,
    ) -> None:
        """`on_acknowledged` is called with the answer to each report that was accepted. `to_look`: for requests to
        control planes that this agent may not follow; another installation gives it a token of its own.
        """
        self._urls = list(urls)
        self._credentials = credentials
        self._to_look = to_look or credentials
        self._leaders = Leaders()
        self._not_followed = ""
        self._looked_at = time.monotonic()
        self._looking: asyncio.Task[None] | None = None
        self._facts = facts
        self._on_acknowledged = on_acknowledged
        self._tls = tls
        verify = tls.context if tls else True
        self._timeout_seconds = request_timeout_seconds
        # No proxy from the environment: the control plane is on the cluster's own network.
        self._client = httpx.AsyncClient(trust_env=False, verify=verify)
        # What users ask for never takes the connections of reports.
        self._client_of_users = httpx.AsyncClient(trust_env=False, verify=verify)
        self._sequence = 0
        self._batch_max = FACTS_PER_REPORT_MAX
        self._failures = 0
        self._answered = ""
        self._moved = asyncio.Event()
        """Another control plane has answered than the last time."""
        self._patience = {False: PROMPT_SECONDS, True: PROMPT_SECONDS}
        """Requests with facts (True) have their own: facts are stored before the answer."""
        self._problem = ""
        self._dropped = ""
        self._unknown = UnknownNames("answer_unknown_content")

    def follow(self, urls: Sequence[str]) -> None:
        """The next request follows it. The address that answered last stays the first one, where it is still there."""
        self._urls = sorted(urls, key=lambda url: url != self._urls[0])
        self._leaders.keep(self._urls)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._client.aclose()
        await self._client_of_users.aclose()

    async def send(self, report: Report) -> bool:
        """Sends the report with the oldest facts. True when the control plane accepted it.

        `report` comes without facts and sequence number. No error of the network is raised.
        """
        batch = self._facts.oldest(self._batch_max)
        try:
            body, batch = self._encode(report, batch)
            self._read_acknowledgement(await self._request("POST", "/v1/reports", body, stores=bool(batch)))
        except UnreachableError as error:
            self._note_problem("control_plane_unreachable", error)
            if batch and isinstance(error, FailedError):
                self._narrow(batch)
            return False
        except RejectedError as error:
            self._note_problem("report_refused", error)
            if batch:
                await self._isolate(report, batch)
            return False
        self._facts.acknowledge(batch)
        self._batch_max = min(FACTS_PER_REPORT_MAX, 2 * self._batch_max)
        self._failures = 0
        if self._problem:
            log.info("control_plane_answers", extra=fields(url=self._urls[0]))
            self._problem = ""
        self._look_around(report)
        return True

    def _look_around(self, report: Report) -> None:
        if time.monotonic() - self._looked_at >= LOOK_SECONDS and len(self._urls) > 1:
            self._looked_at = time.monotonic()
            look = msgspec.structs.replace(_without_telemetry(report), looks=True)
            self._looking = asyncio.create_task(self._look(self._urls[1:], self._encode(look, [])[0]))

    async def _look(self, urls: Sequence[str], body: bytes) -> None:
        for url in urls:
            with contextlib.suppress(httpx.HTTPError):
                term = self._leaders.term
                await self._ask("POST", url, "/v1/reports", body, httpx.Timeout(PROMPT_SECONDS), self._to_look)
                if self._leaders.term != term:  # it has taken the lead
                    self._prefer(url)

    async def restore_point(self, request: RestorePointRequest) -> RestorePoint:
        """Waits for a control plane that does not answer, or does not know the job yet. Raises RestorePointError."""
        deadline = time.monotonic() + RESTORE_POINT_WAIT_SECONDS
        query = f"/v1/restore-point?{request.query()}"
        while True:
            try:
                return self._decode(await self._request("GET", query), RestorePoint)
            except NOT_UNDERSTOOD as error:
                raise RestorePointError(f"the answer of the control plane cannot be decoded: {error}") from error
            except RejectedError as error:
                raise RestorePointError(str(error), final=True) from error
            except UnreachableError as error:
                if time.monotonic() + RESTORE_POINT_RETRY_SECONDS > deadline:
                    waited = f"no answer within {RESTORE_POINT_WAIT_SECONDS:g} s"
                    raise RestorePointError(f"{waited}; the last error: {error}") from error
            await asyncio.sleep(RESTORE_POINT_RETRY_SECONDS)

    async def launcher_orders(self, report: LauncherReport) -> LauncherAnswer:
        """Waits for new orders for the time in the report. Raises UnreachableError and RejectedError."""
        answer = await self._request("POST", "/v1/launchers", _encoder.encode(report), report.wait_seconds)
        try:
            return self._decode(answer, LauncherAnswer)
        except NOT_UNDERSTOOD as error:
            raise UnreachableError(f"the answer of the control plane cannot be decoded: {error}") from error

    def _read_acknowledgement(self, answer: bytes) -> None:
        """Passes on the verdict about this node; logs what the control plane dropped, when that changes."""
        try:
            acknowledgement = self._decode(answer, Acknowledgement)
        except NOT_UNDERSTOOD as error:
            dropped = f"the acknowledgement cannot be decoded: {error}"
        else:
            dropped = "; ".join(acknowledgement.dropped)
            self._on_acknowledged(acknowledgement)
        if dropped and dropped != self._dropped:
            log.warning("report_dropped_in_part", extra=fields(reason=dropped))
        self._dropped = dropped

    def _decode(self, answer: bytes, kind: type[Answer]) -> Answer:
        """Ignores what only a newer control plane sends, and logs each name of it once. Raises NOT_UNDERSTOOD."""
        decoded = msgspec.json.decode(answer, type=kind)
        self._unknown.note(unknown_in(kind, answer))
        return decoded

    def _narrow(self, batch: list[Fact]) -> None:
        """One of these facts may be the cause: fewer next time. One that fails alone lets the others go first."""
        self._failures += 1
        if self._failures < FAILURES_BEFORE_NARROWING:
            return
        self._batch_max = max(1, len(batch) // 2)
        if len(batch) == 1:
            self._facts.set_back(batch[0])

    async def _isolate(self, report: Report, batch: list[Fact]) -> None:
        """Finds the fact that the control plane refuses and drops it, so that it does not hold up the others.

        Sends an empty report first: when that is refused too (because of an unknown wire version, say), no fact is the
        cause and none is dropped.
        """
        bare = _without_telemetry(report)
        try:
            await self._request("POST", "/v1/reports", self._encode(bare, [])[0])
        except (RejectedError, UnreachableError):
            return
        for fact in batch:
            try:
                await self._request("POST", "/v1/reports", self._encode(bare, [fact])[0], stores=True)
            except UnreachableError:
                return
            except RejectedError as error:
                log.error("fact_dropped", extra=fields(fact=_encoder.encode(fact).decode(), error=error))
                self._facts.refuse(fact, str(error))
            else:
                self._facts.acknowledge([fact])

    def _encode(self, report: Report, batch: list[Fact]) -> tuple[bytes, list[Fact]]:
        """The body, and the facts in it: as many of `batch` as fit. Telemetry is dropped before facts."""
        self._sequence += 1
        sent_at = min(time.time(), EPOCH_SECONDS_MAX)
        leaders = self._leaders.answering(time.monotonic())
        report = msgspec.structs.replace(report, sequence=self._sequence, sent_at=sent_at, facts=batch, leaders=leaders)
        body = _encoder.encode(report)
        while len(body) > REPORT_BYTES_MAX:
            if report.ranks:
                report = msgspec.structs.replace(report, ranks=report.ranks[len(report.ranks) // 2 + 1 :])
            elif report.keeper is not None and report.keeper.saves:
                fewer = report.keeper.saves[: len(report.keeper.saves) // 2]
                report = msgspec.structs.replace(report, keeper=msgspec.structs.replace(report.keeper, saves=fewer))
            elif report.parts or report.programs:  # they come again
                report = msgspec.structs.replace(report, parts=[], programs=None)
            elif len(batch) > 1:
                batch = batch[: len(batch) // 2]
                report = msgspec.structs.replace(report, facts=batch)
            else:
                raise RejectedError(f"the report has {len(body)} bytes, the limit is {REPORT_BYTES_MAX}")
            body = _encoder.encode(report)
        return body, batch

    async def _request(
        self, method: str, path: str, body: bytes | None = None, wait_seconds: float = 0.0, *, stores: bool = False
    ) -> bytes:
        """The body of the first 200. Raises RejectedError (refused), UnreachableError (no answer)."""
        patience = self._patience[stores]
        failures = []
        failed = False
        for url in list(self._urls):
            begun = time.monotonic()
            try:
                asking = self._ask(method, url, path, body, self._limits(patience, wait_seconds), self._credentials)
                answer = await (self._while_first(url, asking) if wait_seconds else asking)
            except httpx.HTTPError as error:
                if isinstance(error, httpx.TimeoutException):
                    self._set_back(url)
                failures.append(f"{url}: {type(error).__name__} {error}".rstrip())
                failures += self._certificate_problem()
            else:
                if answer.status_code == httpx.codes.OK:
                    self._prefer(url)
                    if not wait_seconds:
                        self._patience[stores] = patience_after(patience, time.monotonic() - begun)
                    return answer.content
                problem = f"{url}: {describe(answer)}"
                if 400 <= answer.status_code < 500 and answer.status_code not in _TRANSIENT:
                    raise RejectedError(problem)
                failures.append(problem)
                failed = failed or answer.status_code >= 500
        self._patience[stores] = min(2 * patience, self._timeout_seconds)
        raise (FailedError if failed else UnreachableError)("; ".join(failures))

    async def _while_first(self, url: str, asking: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        """A long poll ends when another control plane takes the reports: this one may be frozen, and orders wait at the
        other.
        """
        tasks = asyncio.ensure_future(asking), asyncio.ensure_future(self._moved.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done() and self._urls[0] != url:
                raise NotFollowedError("another control plane takes the reports")
            return await tasks[0]
        finally:
            for task in tasks:
                task.cancel()

    def _certificate_problem(self) -> list[str]:
        """The agent's certificate may have expired: its file is read again."""
        try:
            if self._tls is not None:
                self._tls.renew()
        except ConfigError as error:
            return [str(error)]
        return []

    def _limits(self, patience: float, wait_seconds: float = 0.0) -> httpx.Timeout:
        seconds = min(patience if len(self._urls) > 1 else self._timeout_seconds, self._timeout_seconds)
        return httpx.Timeout(seconds, read=seconds + wait_seconds)

    async def _ask(
        self, method: str, base: str, path: str, body: bytes | None, limits: httpx.Timeout, own: Credentials
    ) -> httpx.Response:
        if own.is_due():
            await own.renew(own.token, self._ask_of(base, own))
        token = own.token
        answer = await self._send_request(method, base, path, body, limits, own)
        if answer.status_code in own.refusals and await own.renew(token, self._ask_of(base, own)):
            answer = await self._send_request(method, base, path, body, limits, own)
        return answer

    def _ask_of(self, base: str, own: Credentials) -> Ask:
        """Asks this control plane for a token. The request counts for the token that the node still has, not for an
        address that other nodes may share.
        """

        async def ask(method: str, path: str, body: bytes | None) -> bytes:
            try:
                limits = self._limits(self._patience[True])  # it is stored, too
                answer = await self._send_request(method, base, path, body, limits, own)
            except httpx.HTTPError as error:
                raise RefusedError(f"{base}: {type(error).__name__} {error}".rstrip()) from error
            if answer.status_code != httpx.codes.OK:
                raise RefusedError(f"{base}: {describe(answer)}")
            return answer.content

        return ask

    async def _send_request(
        self, method: str, base: str, path: str, body: bytes | None, limits: httpx.Timeout, own: Credentials
    ) -> httpx.Response:
        """Raises httpx.HTTPError."""
        headers = {"Authorization": f"Bearer {own.token}"} if own.token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        client = self._client if path in _OF_THE_NODE else self._client_of_users
        try:
            answer = await client.request(method, base + path, content=body, headers=headers, timeout=limits)
        except httpx.HTTPError:
            self._leaders.note_silent(base)
            raise
        objection = self._leaders.note(answer.headers.get(LEADER_HEADER, ""), base, time.monotonic())
        if objection and f"{base} {objection}" != self._not_followed:
            self._not_followed = f"{base} {objection}"
            log.warning("control_plane_not_followed", extra=fields(url=base, reason=objection))
        if objection and own is self._credentials:
            raise NotFollowedError(objection)
        return answer

    def _set_back(self, url: str) -> None:
        """Next time the others are asked before it: one that stands by refuses at once."""
        if url in self._urls:
            self._urls.remove(url)
            self._urls.append(url)

    def _prefer(self, url: str) -> None:
        if url in self._urls:
            self._urls.remove(url)
            self._urls.insert(0, url)
        if url != self._answered:
            self._moved.set()
            self._moved = asyncio.Event()
            if self._answered:
                log.warning("control_plane_changed", extra=fields(url=url))
            self._answered = url

    def _note_problem(self, event: str, error: Exception) -> None:
        """Logs when a problem begins or changes: not a line every second."""
        if event != self._problem:
            self._problem = event
            log.error(event, extra=fields(error=error, count=len(self._facts)))
