"""Addresses, keys and tokens from files; and texts without them."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

BYTES_MAX = 65_536
WORD_CHARACTERS_MIN = 16
"""A part of a URL's path or query with as many may be a token."""

PASSWORD_CHARACTERS_MIN = 4


class SecretError(Exception):
    """The message names the file, the cause and what to do; never what is in it."""


def read_secret(path: Path) -> str:
    """Raises SecretError."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(f"{path} cannot be read: {error.strerror}; let the control plane's user read it") from error
    if mode & 0o007:
        raise SecretError(f"{path} is open to all users; close it: chmod o= {path}")
    if len(content) > BYTES_MAX:
        raise SecretError(f"{path} has more than {BYTES_MAX} bytes; name the file with the address or key alone")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise SecretError(f"{path} is not UTF-8; write the address or key as text") from error
    if not text:
        raise SecretError(f"{path} is empty; write the address or key into it")
    return text


def lines_of(text: str) -> list[str]:
    """Lines without empty ones and comments."""
    return [line for one in text.splitlines() if (line := one.strip()) and not line.startswith("#")]


def without(text: str, secrets: Iterable[str]) -> str:
    """`secrets`: contents of files. They, and the parts of their URLs that may be tokens, are replaced."""
    found = {part for secret in secrets for part in _parts(secret)}
    for part in sorted(found, key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def _parts(secret: str) -> Iterator[str]:
    if len(secret) >= PASSWORD_CHARACTERS_MIN:
        yield secret
    for line in lines_of(secret):
        yield line
        try:
            url = urlsplit(line)
            password = url.password
        except ValueError:
            continue
        if not url.scheme:
            continue
        if password is not None and len(password) >= PASSWORD_CHARACTERS_MIN:
            yield from (password, unquote(password))
        words = [
            url.username or "",
            url.hostname or "",
            *url.path.split("/"),
            *(value for _, value in parse_qsl(url.query)),
        ]
        for word in words:
            if len(word) >= WORD_CHARACTERS_MIN and "." not in word and "@" not in word:
                yield from (word, unquote(word))
