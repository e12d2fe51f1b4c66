"""To the control plane and back: reports go out, facts stay queued until they are acknowledged.

The control planes of the list are tried in turn, beginning with the one that answered last. A report that
fails takes its telemetry with it; its facts go out with the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from understudy_agent.config import ConfigError
from understudy_agent.facts import FactQueue
from understudy_agent.log import fields, log
from understudy_agent.wire import (
    FACTS_PER_REPORT_MAX,
    NOT_UNDERSTOOD,
    REPORT_BYTES_MAX,
    Acknowledgement,
    Fact,
    LauncherReport,
    LauncherWord,
    Report,
    RestorePoint,
)

RESTORE_POINT_WAIT_SECONDS = 30.0
RESTORE_POINT_RETRY_SECONDS = 0.25

# Refusals that say nothing about the report's content: a wrong token, an unknown node, too many requests.
_PASSING = {401, 404, 408, 425, 429}
_TOKEN_REFUSED = {401, 403}

_encoder = msgspec.json.Encoder()


def _without_telemetry(report: Report) -> Report:
    """Who reports, and nothing that a control plane of another release might not know."""
    return Report(
        version=report.version,
        cluster=report.cluster,
        node=report.node,
        boot_id=report.boot_id,
        sequence=report.sequence,
        agent_started_at=report.agent_started_at,
        sent_at=report.sent_at,
        driver_version=report.driver_version,
    )


@dataclass(frozen=True, slots=True)
class RestoreQuestion:
    """Where does this attempt of the job go on? The control plane answers the job's owner and root only."""

    job_id: int
    restart_count: int
    launch: int
    user_id: int  # of the process that asks, as the kernel tells
    if_managed: bool = False  # a job that did not ask for us gets a plain no


class RestorePointError(Exception):
    """The control plane named no restore point in time; the message says why."""


class UnreachableError(Exception):
    """No control plane took the request; nothing is wrong with its content. The message says why."""


class RejectedError(Exception):
    """A control plane read the request and will not have it; the message carries its words."""


class Uplink:
    """One report at a time; restore points may be asked for meanwhile."""

    def __init__(
        self,
        urls: Sequence[str],
        read_token: Callable[[], str],
        facts: FactQueue,
        request_timeout_seconds: float,
        on_unfit: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`read_token` is asked again when the control plane refuses the token. It may raise ConfigError.

        `on_unfit` is told with every acknowledgement why no new job may start on this node; empty: no objection.
        """
        self._urls = list(urls)
        self._read_token = read_token
        self._token = read_token()
        self._facts = facts
        self._on_unfit = on_unfit
        self._timeout_seconds = request_timeout_seconds
        # No proxy from the environment: the control plane stands on the cluster's own network.
        self._client = httpx.AsyncClient(trust_env=False)
        self._sequence = 0
        self._trouble = ""
        self._dropped = ""

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, report: Report) -> bool:
        """Send the picture with the oldest facts. True when the control plane took it.

        `report` comes without facts and sequence number. Raises nothing that the network can cause.
        """
        batch = self._facts.oldest(FACTS_PER_REPORT_MAX)
        try:
            body, batch = self._encode(report, batch)
            self._heed(await self._request("POST", "/v1/reports", body))
        except UnreachableError as error:
            self._note_trouble("control_plane_unreachable", error)
            return False
        except RejectedError as error:
            self._note_trouble("report_refused", error)
            if batch:
                await self._isolate(report, batch)
            return False
        self._facts.acknowledge(batch)
        if self._trouble:
            log.info("control_plane_answers_again", extra=fields(url=self._urls[0]))
            self._trouble = ""
        return True

    async def restore_point(self, question: RestoreQuestion) -> RestorePoint:
        """Waits for a control plane that is away or does not know the job yet. Raises
        RestorePointError.
        """
        deadline = time.monotonic() + RESTORE_POINT_WAIT_SECONDS
        query = (
            f"/v1/restore-point?job_id={question.job_id}&restart_count={question.restart_count}"
            f"&launch={question.launch}&user_id={question.user_id}"
            + ("&if_managed=true" if question.if_managed else "")
        )
        while True:
            try:
                return msgspec.json.decode(await self._request("GET", query), type=RestorePoint)
            except NOT_UNDERSTOOD as error:
                raise RestorePointError(f"the answer is not understood: {error}") from error
            except RejectedError as error:
                raise RestorePointError(str(error)) from error
            except UnreachableError as error:
                if time.monotonic() + RESTORE_POINT_RETRY_SECONDS > deadline:
                    waited = f"nothing within {RESTORE_POINT_WAIT_SECONDS:g} s"
                    raise RestorePointError(f"{waited}, at last: {error}") from error
            await asyncio.sleep(RESTORE_POINT_RETRY_SECONDS)

    async def launcher_word(self, report: LauncherReport) -> LauncherWord:
        """Waits for news as long as the report says. Raises UnreachableError and RejectedError."""
        answer = await self._request("POST", "/v1/launchers", _encoder.encode(report), report.wait_seconds)
        try:
            return msgspec.json.decode(answer, type=LauncherWord)
        except NOT_UNDERSTOOD as error:
            raise UnreachableError(f"the answer is not understood: {error}") from error

    def _heed(self, answer: bytes) -> None:
        """The verdict on this node, and what was not believed: said when it changes, a line a second would drown the
        log.
        """
        try:
            acknowledgement = msgspec.json.decode(answer, type=Acknowledgement)
        except NOT_UNDERSTOOD as error:
            dropped = f"the acknowledgement is not understood: {error}"
        else:
            dropped = "; ".join(acknowledgement.dropped)
            self._on_unfit(acknowledgement.unfit)
        if dropped and dropped != self._dropped:
            log.warning("not_believed", extra=fields(what=dropped))
        self._dropped = dropped

    async def _isolate(self, report: Report, batch: list[Fact]) -> None:
        """Find the fact that the control plane refuses and drop it, so that it does not hold up the others.

        A report with nothing in it goes first: when that is refused too (an unknown wire version, say), no
        fact is to blame and none is dropped.
        """
        bare = _without_telemetry(report)
        try:
            await self._post(self._encode(bare, [])[0])
        except (RejectedError, UnreachableError):
            return
        for fact in batch:
            try:
                await self._post(self._encode(bare, [fact])[0])
            except UnreachableError:
                return
            except RejectedError as error:
                log.error("fact_dropped", extra=fields(fact=_encoder.encode(fact).decode(), refused_with=error))
                self._facts.refuse(fact, str(error))
            else:
                self._facts.acknowledge([fact])

    def _encode(self, report: Report, batch: list[Fact]) -> tuple[bytes, list[Fact]]:
        """The body, and the facts that are in it: as many of `batch` as fit. Telemetry gives way to facts."""
        self._sequence += 1
        report = msgspec.structs.replace(report, sequence=self._sequence, sent_at=time.time(), facts=batch)
        body = _encoder.encode(report)
        while len(body) > REPORT_BYTES_MAX:
            if report.ranks:
                report = msgspec.structs.replace(report, ranks=report.ranks[len(report.ranks) // 2 + 1 :])
            elif len(batch) > 1:
                batch = batch[: len(batch) // 2]
                report = msgspec.structs.replace(report, facts=batch)
            else:
                raise RejectedError(f"the report has {len(body)} bytes, at most {REPORT_BYTES_MAX} can be sent")
            body = _encoder.encode(report)
        return body, batch

    async def _post(self, body: bytes) -> None:
        await self._request("POST", "/v1/reports", body)

    async def _request(self, method: str, path: str, body: bytes | None = None, wait_seconds: float = 0.0) -> bytes:
        """The body of the first 200. Raises RejectedError when one says no, UnreachableError without any."""
        failures = []
        for url in list(self._urls):
            try:
                answer = await self._ask(method, url + path, body, wait_seconds)
            except httpx.HTTPError as error:
                failures.append(f"{url}: {type(error).__name__} {error}".rstrip())
            else:
                if answer.status_code == httpx.codes.OK:
                    self._prefer(url)
                    return answer.content
                words = f"{url}: HTTP {answer.status_code} {answer.text[:500]}".rstrip()
                if 400 <= answer.status_code < 500 and answer.status_code not in _PASSING:
                    raise RejectedError(words)
                failures.append(words)
        raise UnreachableError("; ".join(failures))

    async def _ask(self, method: str, url: str, body: bytes | None, wait_seconds: float) -> httpx.Response:
        answer = await self._send_request(method, url, body, wait_seconds)
        if answer.status_code in _TOKEN_REFUSED and await asyncio.to_thread(self._renew_token):
            answer = await self._send_request(method, url, body, wait_seconds)
        return answer

    async def _send_request(self, method: str, url: str, body: bytes | None, wait_seconds: float) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx.Timeout(self._timeout_seconds, read=self._timeout_seconds + wait_seconds)
        return await self._client.request(method, url, content=body, headers=headers, timeout=timeout)

    def _renew_token(self) -> bool:
        """True when the file holds another token than the one that was refused."""
        try:
            token = self._read_token()
        except ConfigError as error:
            log.error("token_unreadable", extra=fields(reason=error))
            return False
        changed = token != self._token
        self._token = token
        return changed

    def _prefer(self, url: str) -> None:
        if self._urls[0] != url:
            self._urls.remove(url)
            self._urls.insert(0, url)
            log.warning("control_plane_changed", extra=fields(url=url))

    def _note_trouble(self, event: str, error: Exception) -> None:
        """One line when trouble begins or changes its kind; a line a second would drown the log."""
        if event != self._trouble:
            self._trouble = event
            log.error(event, extra=fields(reason=error, facts_waiting=len(self._facts)))
