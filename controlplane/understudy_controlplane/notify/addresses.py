"""Finds addresses and keys in their files, and the sender for each kind of receiver."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from understudy_controlplane.access.secret_files import SecretError, lines_of, read_secret, without
from understudy_controlplane.config import OWNERS, Config, ReceiverKind
from understudy_controlplane.notify.messages import Shown
from understudy_controlplane.notify.senders import Attachment, post, send_alerts, send_by_apprise, send_signed

HEARTBEAT = "heartbeat"
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
MAIL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}@([A-Za-z0-9.-]{1,250})")


@dataclass(frozen=True, slots=True)
class To:
    """`user`, `mail`: of an owner, and where they chose to be notified."""

    receiver: str
    user: str = ""
    mail: str = ""


def chosen_mail(address: str, domains: Collection[str]) -> str:
    """The address, where the site lets owners choose it; else empty."""
    found = MAIL.fullmatch(address)
    return address if found is not None and found[1].lower() in domains else ""


def secrets_of(config: Config) -> list[str]:
    """All that no message may contain. A file that cannot be read is left out."""
    found = [config.server.database]
    for path in _files(config):
        try:
            found.append(read_secret(path))
        except SecretError:
            continue
    return [one for one in found if one]


def _files(config: Config) -> Iterator[Path]:
    notify = config.notify
    for one in notify.receivers.values():
        yield from (path for path in (one.url_file, one.secret_file) if path is not None)
    yield from (path for path in (notify.heartbeat_url_file, notify.owners_url_file) if path is not None)
    yield from notify.owners_url_files.values()


def send(
    config: Config,
    to: To,
    version: Shown,
    body: Mapping[str, object],
    now: float,
    attached: Attachment | None = None,
) -> str:
    """Returns why it was not accepted, without secrets; empty: it was."""
    secrets = secrets_of(config)
    version = replace(version, title=without(version.title, secrets), text=without(version.text, secrets))
    if attached is not None:
        attached = replace(attached, content=without(attached.content, secrets))
    return _tried(secrets, lambda: _send(config, to, version, _without(body, secrets), now, attached))


def _tried(secrets: Collection[str], work: Callable[[], str]) -> str:
    try:
        return without(work(), secrets)
    except SecretError as problem:
        return str(problem)
    except Exception as problem:  # noqa: BLE001 - of any service of apprise; its text may contain secrets
        return type(problem).__name__


def _send(
    config: Config,
    to: To,
    version: Shown,
    body: Mapping[str, object],
    now: float,
    attached: Attachment | None,
) -> str:
    if to.receiver == OWNERS:
        return _send_to_owner(config, to, version)
    receiver = config.notify.receivers[to.receiver]
    url = one_url(receiver.url_file)
    if receiver.kind is ReceiverKind.APPRISE:
        return send_by_apprise(url, version, attached)
    assert receiver.kind is ReceiverKind.WEBHOOK
    assert receiver.secret_file is not None
    return send_signed(url, read_secret(receiver.secret_file), body, now)


def _send_to_owner(config: Config, to: To, version: Shown) -> str:
    path, domains = config.notify.owners_url_of(to.user), config.notify.owners_mail_domains
    url = one_url(path) if path is not None else ""
    if not url or ("{user}@" in url and not USER.fullmatch(to.user)):
        return f"{to.user!r} cannot be part of an address"
    url = url.replace("{user}", quote(to.user, safe=""))
    if "{mail}" in url:
        if not domains:
            return f"{path} has {{mail}}, and no domain is known; set notify.owners_mail_domains"
        mail = chosen_mail(to.mail, domains) or mail_of(to.user, domains)
        if not mail:
            return f"{to.user!r} cannot be part of a mail address; the owner can set --mail-user"
        url = url.replace("{mail}", quote(mail, safe="@"))
    return send_by_apprise(url, version)


def mail_of(user: str, domains: Sequence[str]) -> str:
    """Address of a user with the first domain; a name that is an address already is one where its domain is known.
    Empty: there is none.
    """
    return chosen_mail(user, domains) or (f"{user}@{domains[0]}" if USER.fullmatch(user) else "")


def send_alerts_to(config: Config, name: str, alerts: list[dict[str, object]]) -> str:
    """Sends to Alertmanager; returns as `send`."""
    receiver, secrets = config.notify.receivers[name], secrets_of(config)

    def work() -> str:
        token = read_secret(receiver.secret_file) if receiver.secret_file is not None else ""
        return send_alerts(one_url(receiver.url_file), token, [dict(_without(one, secrets)) for one in alerts])

    return _tried(secrets, work)


def send_heartbeat(config: Config) -> str:
    """Returns as `send`."""
    file = config.notify.heartbeat_url_file
    assert file is not None
    return _tried(secrets_of(config), lambda: post(one_url(file), b"", {}))


def one_url(path: Path) -> str:
    """Raises SecretError."""
    lines = lines_of(read_secret(path))
    if len(lines) != 1:
        raise SecretError(f"{path} has {len(lines)} addresses; write one, and make a receiver for each other one")
    return lines[0]


def _without(body: Mapping[str, object], secrets: Collection[str]) -> Mapping[str, object]:
    def clean(value: object) -> object:
        if isinstance(value, str):
            return without(value, secrets)
        if isinstance(value, list):
            return [clean(one) for one in value]
        if isinstance(value, dict):
            return {name: clean(one) for name, one in value.items()}
        return value

    return {name: clean(value) for name, value in body.items()}
