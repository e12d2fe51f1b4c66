"""Bearer tokens from files."""

from __future__ import annotations

import hmac
from pathlib import Path

from understudy_controlplane.config import ConfigError

TOKEN_CHARACTERS_MIN = 16


class Token:
    """A secret that a request must carry as `Authorization: Bearer …`."""

    def __init__(self, secret: str) -> None:
        self._expected = f"Bearer {secret}".encode()

    def admits(self, authorization: str | None) -> bool:
        return authorization is not None and hmac.compare_digest(authorization.encode(), self._expected)


def read_token(path: Path) -> Token:
    """Raises ConfigError when the file is missing, unreadable or holds no usable secret."""
    try:
        secret = path.read_text().strip()
    except OSError as error:
        hint = f"create it: (umask 077; head -c 32 /dev/urandom | base64 > {path})"
        raise ConfigError(f"{path}: the token cannot be read: {error.strerror}; {hint}") from error
    if len(secret) < TOKEN_CHARACTERS_MIN:
        raise ConfigError(f"{path}: the token is too short; create one of at least {TOKEN_CHARACTERS_MIN} characters")
    return Token(secret)
