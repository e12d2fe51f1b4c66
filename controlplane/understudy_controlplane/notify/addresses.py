"""Where messages go: addresses and keys from their files, and the sender for each kind of receiver."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from understudy_controlplane.config import OWNERS, Config, ReceiverKind
from understudy_controlplane.notify.messages import Shown
from understudy_controlplane.notify.secret_files import SecretError, lines_of, read_secret, without
from understudy_controlplane.notify.senders import post, send_alerts, send_by_apprise, send_signed

HEARTBEAT = "heartbeat"
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def secrets_of(config: Config) -> list[str]:
    """All that no message may contain. A file that cannot be read is left out."""
    found = [config.server.database, config.repair.webhook]
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


def send(config: Config, to: tuple[str, str], version: Shown, body: Mapping[str, object], now: float) -> str:
    """`to`: receiver and user. Returns why it was not accepted, without secrets; empty: it was."""
    secrets = secrets_of(config)
    version = replace(version, title=without(version.title, secrets), text=without(version.text, secrets))
    try:
        error = _send(config, to, version, _without(body, secrets), now)
    except SecretError as problem:
        return str(problem)
    except Exception as problem:  # noqa: BLE001 - of any service of apprise; its text may contain secrets
        return type(problem).__name__
    return without(error, secrets)


def _send(config: Config, to: tuple[str, str], version: Shown, body: Mapping[str, object], now: float) -> str:
    name, user = to
    if name == OWNERS:
        if config.notify.owners_url_file is None or not USER.fullmatch(user):
            return f"{user!r} cannot be part of an address"
        return send_by_apprise(one_url(config.notify.owners_url_file).replace("{user}", user), version)
    receiver = config.notify.receivers[name]
    url = one_url(receiver.url_file)
    if receiver.kind is ReceiverKind.APPRISE:
        return send_by_apprise(url, version)
    assert receiver.kind is ReceiverKind.WEBHOOK
    assert receiver.secret_file is not None
    return send_signed(url, read_secret(receiver.secret_file), body, now)


def send_alerts_to(config: Config, name: str, alerts: list[dict[str, object]]) -> str:
    """As `send`, to Alertmanager."""
    receiver, secrets = config.notify.receivers[name], secrets_of(config)
    try:
        token = read_secret(receiver.secret_file) if receiver.secret_file is not None else ""
        url = one_url(receiver.url_file)
    except SecretError as problem:
        return str(problem)
    return without(send_alerts(url, token, [dict(_without(one, secrets)) for one in alerts]), secrets)


def send_heartbeat(config: Config) -> str:
    """As `send`."""
    assert config.notify.heartbeat_url_file is not None
    try:
        return without(post(one_url(config.notify.heartbeat_url_file), b"", {}), secrets_of(config))
    except SecretError as problem:
        return str(problem)


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
