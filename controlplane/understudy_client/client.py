"""Requests to the control plane that leads, and what can go wrong with them."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from understudy_client.munge import MungeAuth

SILENCE_SECONDS_MAX = 45.0
"""Longest silence of a stream of events. The control plane sends something every 15 seconds."""

PROMPT_SECONDS = 1.0
"""Time in which each of several control planes answers whether it leads: a host may be gone, or its process frozen."""

PAGE_RECORDS_MAX = 1000
UNAVAILABLE = (502, 503, 504)
TOO_MANY = 429
REPEATS_MAX = 10
WAIT_SECONDS_MAX = 10
Fields = dict[str, Any]
OTHER_RELEASE = "check that the URL is that of a control plane of the same release"


class ClientError(Exception):
    """The message names what failed and what to do."""


class UnreachableError(ClientError):
    """No control plane answered, or it cannot answer now."""


class RefusedError(ClientError):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CertificatesUnusable(ClientError):
    pass


class UnreadableError(UnreachableError, AttributeError):
    """What answered is no control plane, or one of another release."""


class Record(dict[str, Any]):
    """An object of an answer. Its fields, which `docs/api.md` and the OpenAPI document describe, are attributes too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __missing__(self, name: str) -> Any:
        raise UnreadableError(f"the answer cannot be read: it has no field {name}; {OTHER_RELEASE}")


class Client:
    """Uses no proxy of the environment: the control plane is inside the cluster's network."""

    def __init__(
        self,
        url: str,
        token: str = "",
        ca_file: Path | None = None,
        *,
        certificate: tuple[Path, Path | None] | None = None,
        timeout_seconds: float = 10.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`url`: addresses of several control planes have commas between them.

        A user without a token proves by MUNGE who they are, if the control plane asks for one. `transport` carries
        the requests instead of the network. `certificate`: this client's own, and its key; None: the key is in the
        same file.
        """
        self._urls = [one.strip().rstrip("/") for one in url.split(",")]
        self._leads = self._urls[0] if len(self._urls) == 1 else ""
        self._munge = None if token else MungeAuth()
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=self._munge,
            timeout=timeout_seconds,
            verify=_certificates(self._urls, ca_file, certificate),
            trust_env=False,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, /, **parameters: object) -> Record:
        return self._record(self._send_checked("GET", path, parameters))

    def text(self, path: str, /, **parameters: object) -> str:
        """The answer as it is."""
        return self._send_checked("GET", path, parameters).text

    def items(self, path: str, at_most: int | None = None, /, **parameters: object) -> list[Record]:
        """The records of a list, page by page; without `at_most` all of them."""
        found: list[Record] = []
        cursor: str | int | None = None
        while at_most is None or len(found) < at_most:
            limit = PAGE_RECORDS_MAX if at_most is None else min(at_most - len(found), PAGE_RECORDS_MAX)
            page = self.get(path, **{**parameters, "limit": limit, "cursor": cursor})
            found += page["items"]
            cursor = page.next
            if cursor is None:
                break
        return found

    def post(self, path: str, reason: str, /, **more: object) -> Record:
        body = {"reason": reason, **_given(more)}
        return self._record(self._send_checked("POST", path, {}, body))

    def events(self, after: str = "", /, **parameters: object) -> EventStream:
        """Begins behind the event with the id `after`, or now."""
        return EventStream(self, _given(parameters), after)

    def lines(self, path: str, parameters: Fields, headers: dict[str, str]) -> Iterator[str]:
        """Lines of a stream until it ends."""
        address = self._leader() + path
        usual = self._http.timeout
        silence = httpx.Timeout(usual.connect, read=SILENCE_SECONDS_MAX, write=usual.write, pool=usual.pool)
        try:
            with self._http.stream("GET", address, params=parameters, headers=headers, timeout=silence) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(address, response, self._munge.problem if self._munge else "")
                yield from response.iter_lines()
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._unreachable(error) from error

    def _leader(self) -> str:
        """Address of the control plane that leads. One that stands by refuses the connection."""
        self._leads = self._leads or self._found()
        return self._leads

    def _found(self) -> str:
        answering: list[str] = []
        for url in self._urls:
            with suppress(httpx.HTTPError, httpx.InvalidURL, UnicodeError):
                answer = self._http.get(f"{url}/readyz", timeout=PROMPT_SECONDS, auth=None)
                if answer.is_success:
                    return url
                answering.append(url)
        return next(iter(answering), self._urls[0])

    def _look_again(self) -> None:
        """Another one may lead by the next request."""
        if len(self._urls) > 1:
            self._leads = ""

    def _send_to_leader(self, made: Callable[[str], httpx.Request]) -> httpx.Response:
        """Sends it again where the one that led before did not receive it, and another one leads."""
        led = self._leads
        try:
            return self._send(made(self._leader()))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            self._look_again()
            if not led or self._leader() == led:
                raise
            return self._send(made(self._leader()))

    def _send(self, request: httpx.Request) -> httpx.Response:
        """Repeats it while the control plane refuses it because there are too many, such as one for each node."""
        for _ in range(REPEATS_MAX):
            response = self._http.send(request)
            wait = response.headers.get("Retry-After", "")
            if response.status_code != TOO_MANY or not wait.isdecimal() or int(wait) > WAIT_SECONDS_MAX:
                return response
            time.sleep(int(wait))
        return self._http.send(request)

    def _send_checked(self, method: str, path: str, parameters: Fields, body: Fields | None = None) -> httpx.Response:
        """Parameters that are None are left out. A refusal is raised."""
        given = _given(parameters) or None
        try:
            response = self._send_to_leader(
                lambda url: self._http.build_request(method, url + path, params=given, json=body)
            )
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: a host such as "a..b"
            raise self._unreachable(error) from error
        if response.is_error:
            self._look_again()
            raise _refusal(str(response.url).partition("?")[0], response, self._munge.problem if self._munge else "")
        return response

    def _record(self, response: httpx.Response) -> Record:
        try:
            return _read(response.content)
        except ValueError as error:
            raise UnreadableError(f"{response.url}: the answer cannot be read: {error}; {OTHER_RELEASE}") from error

    def _unreachable(self, error: Exception) -> UnreachableError:
        url = self._leads or self._urls[0]
        self._look_again()
        remedy = "check that `understudy serve` runs there, or name another URL with --url or UNDERSTUDY_URL"
        cause = str(error)
        if "WRONG_VERSION_NUMBER" in cause or "RECORD_LAYER_FAILURE" in cause:
            remedy = "it speaks no TLS: its URL begins with http://, until server.tls_certificate is set there"
        elif "CERTIFICATE_VERIFY_FAILED" in cause and ("mismatch" in cause or "not valid for" in cause):
            remedy = "its certificate is for another name: use that name in the URL (--url or UNDERSTUDY_URL)"
        elif "CERTIFICATE_VERIFY_FAILED" in cause:
            remedy = (
                "no certificate that you trust has signed its own: name the site's with --ca-file or UNDERSTUDY_CA_FILE"
            )
        elif url.startswith("http://") and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            remedy = "it may speak TLS: then its URL begins with https://"
        return UnreachableError(f"{', '.join(self._urls)}: no answer: {error}; {remedy}")


@dataclass
class EventStream:
    """Events of one connection, until it ends or UnreachableError is raised. Iterated again, it goes on behind the last
    event: nothing is left out, and nothing comes twice.
    """

    client: Client
    parameters: Fields = field(default_factory=dict)
    last_id: str = ""
    has_answered: bool = False

    def __iter__(self) -> Iterator[Record]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last_id} if self.last_id else {})
        last_id, data = self.last_id, ""
        for line in self.client.lines("/v1/events", self.parameters, headers):
            self.has_answered = True
            name, _, value = line.partition(": ")
            if name == "id":
                last_id = value
            elif name == "data":
                data = value
            elif not line:
                self.last_id, whole, data = last_id, data, ""
                if whole:
                    yield _event(whole)


def _given(fields: Fields) -> Fields:
    """Those that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _read(content: str | bytes) -> Record:
    """Raises ValueError."""
    try:
        found = json.loads(content, object_hook=Record)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, Record):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of the text, not of an argument
    return found


def _event(data: str) -> Record:
    try:
        return _read(data)
    except ValueError as error:
        raise UnreachableError(f"an event cannot be read: {error}; {OTHER_RELEASE}") from error


def _refusal(address: str, response: httpx.Response, munge: str) -> ClientError:
    """`munge`: why there is no token by MUNGE."""
    try:
        problem = _read(response.content)
        detail, hint = str(problem["detail"]), str(problem.get("hint", ""))
    except (ValueError, UnreadableError):
        detail, hint = f"HTTP {response.status_code} {response.text[:200]}", "check the URL"
        if response.text.lstrip()[:1] == "<":
            detail = f"HTTP {response.status_code}, and a page for browsers"
            hint = "the URL of the control plane has no path, as in http://head1:7117 (--url or UNDERSTUDY_URL)"
    of_munge = f"by MUNGE: {munge}" if munge and response.status_code == httpx.codes.UNAUTHORIZED else ""
    message = "; ".join(filter(None, (f"{address}: {detail}", hint, of_munge)))
    unavailable = response.status_code in UNAVAILABLE
    return UnreachableError(message) if unavailable else RefusedError(message, response.status_code)


def _certificates(
    urls: Sequence[str], ca_file: Path | None, certificate: tuple[Path, Path | None] | None
) -> ssl.SSLContext | bool:
    """What the control plane's certificate is held against, and the client's own; True: the system's certificates."""
    if ca_file is None and certificate is None:
        return any(url.startswith("https") for url in urls)
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise CertificatesUnusable(
            f"{ca_file}: cannot be used: {error}; --ca-file names a file with certificates in PEM"
        ) from error
    if certificate is None:
        return context
    try:
        context.load_cert_chain(*certificate)
    except (OSError, ssl.SSLError) as error:
        raise CertificatesUnusable(
            f"{certificate[0]}: cannot be used: {error}; --certificate and --key name a certificate and its key in PEM"
        ) from error
    return context
