"""Enrolment of a node without MUNGE: a one-time code for the node's own token, once in its life."""

from __future__ import annotations

import os

import httpx
import msgspec

from understudy_agent.config import Config, ConfigError, tls_of
from understudy_agent.refusals import describe
from understudy_agent.uplink import REQUEST_TIMEOUT_SECONDS
from understudy_wire.messages import NodeToken
from understudy_wire.values import NOT_UNDERSTOOD


def enroll(config: Config, code: str) -> None:
    """Writes the token to `token_file`, for its owner alone. Raises ConfigError."""
    if config.token_file is None:
        raise ConfigError("token_file: not set; name the file for the node's token")
    if not code.isascii() or not code.isprintable() or not code:
        raise ConfigError("there is no code on standard input; `understudy token enroll NODE` prints one")
    # Before the code is used up: a folder that is missing or not writable must not cost it.
    fresh = config.token_file.with_name(f"{config.token_file.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"token_file: {fresh} cannot be made: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{_ask(config, code)}\n")
        fresh.replace(config.token_file)
    finally:
        fresh.unlink(missing_ok=True)


def _ask(config: Config, code: str) -> str:
    """The first control plane that answers decides. Raises ConfigError."""
    failures = []
    tls = tls_of(config)
    verify = tls.context if tls else True
    with httpx.Client(trust_env=False, verify=verify, timeout=REQUEST_TIMEOUT_SECONDS) as client:
        for url in config.control_plane_urls:
            try:
                answer = client.post(f"{url}/v1/enrolment", headers={"Authorization": f"Bearer {code}"})
            except httpx.HTTPError as error:
                failures.append(f"{url}: {type(error).__name__} {error}".rstrip())
                continue
            if answer.status_code != httpx.codes.OK:
                raise ConfigError(f"{url}: {describe(answer)}")
            try:
                return msgspec.json.decode(answer.content, type=NodeToken).token
            except NOT_UNDERSTOOD as error:
                raise ConfigError(f"{url}: the answer cannot be decoded: {error}") from error
    raise ConfigError(f"no control plane answers: {'; '.join(failures)}")
