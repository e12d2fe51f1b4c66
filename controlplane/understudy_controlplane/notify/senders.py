"""Send one message to one receiver. Each function returns why it was not accepted; empty: it was. The text may contain
secrets: the caller removes them.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from understudy_controlplane.access.secret_files import lines_of
from understudy_controlplane.config import Importance
from understudy_controlplane.fleet.notice import Stage
from understudy_controlplane.notify.messages import Shown

TIMEOUT_SECONDS = 10.0
APPRISE_SECONDS = 60.0
"""Timeout of all its services together."""

KEY_CHARACTERS_MIN = 16
LOG_LINE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Attachment:
    name: str
    media_type: str
    content: str


def signature(key: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over time, a dot and the body."""
    return hmac.new(key.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def send_signed(url: str, key: str, body: Mapping[str, object], now: float) -> str:
    if len(key) < KEY_CHARACTERS_MIN:
        return f"the key of the signature has less than {KEY_CHARACTERS_MIN} characters; write a longer one"
    content, timestamp = msgspec.json.encode(body), f"{now:.0f}"
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": f"{body['id']}-{body['revision']}",
        "Understudy-Timestamp": timestamp,
        "Understudy-Signature": f"v1={signature(key, timestamp, content)}",
    }
    return post(url, content, headers)


def send_alerts(url: str, token: str, alerts: Sequence[Mapping[str, object]]) -> str:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return post(f"{url.rstrip('/')}/api/v2/alerts", msgspec.json.encode(alerts), headers)


def post(url: str, content: bytes, headers: Mapping[str, str]) -> str:
    """Follows no redirection, and does not read the body of the answer, which may be endless."""
    try:
        with httpx.stream(
            "POST", url, content=content, headers=headers, timeout=TIMEOUT_SECONDS, verify=_trusted()
        ) as response:
            return "" if response.is_success else f"HTTP {response.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Certificates of the host, as httpx reads them; reading them takes 40 ms."""
    return httpx.create_ssl_context()


def send_by_apprise(url: str, version: Shown, attached: Attachment | None = None) -> str:
    """A service that takes no files gets the text alone."""
    try:
        import apprise
    except ModuleNotFoundError:
        return "apprise is not installed; install slurm-understudy[notify]"
    # Its log names addresses. What went wrong comes from the result, and without secrets into the control plane's log.
    logger = logging.getLogger("apprise")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    asset = apprise.AppriseAsset(app_id="Understudy", app_desc="Understudy", http_redirects=False)
    sender = apprise.Apprise(asset=asset)
    lines = lines_of(url)
    if len(lines) != 1:
        return "the file has more than one URL; make a receiver for each, so that one that fails repeats no other"
    if not sender.add(lines[0]):
        return "apprise does not know this URL; try it with `apprise -vv -b test URL`"
    logged: list[str] = []
    files = None
    if attached is not None:
        from apprise.attachment.memory import AttachMemory

        make: Any = AttachMemory  # it has no types
        files = make(content=attached.content, name=attached.name, mimetype=attached.media_type)
    kinds = {Importance.PAGE: "failure", Importance.WARNING: "warning", Importance.INFO: "info"}
    result = sender.notify(
        body=version.text,
        title=version.title,
        notify_type="success" if version.status is Stage.OVER else kinds[version.importance],
        body_format="text",
        attach=files,
        interpret_escapes=False,
        timeout=APPRISE_SECONDS,
        log_callback=lambda entry, _service: logged.append(entry.message),
        log_level=logging.WARNING,
    )
    if result:
        return ""
    return " ".join((logged or ["the service did not accept it"])[-1].split())[:LOG_LINE_CHARACTERS_MAX]
