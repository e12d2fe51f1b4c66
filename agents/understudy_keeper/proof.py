"""How two keepers know each other: TLS with a key that each makes at its start, and MUNGE for whose key it is.

The credential of each side is made by the keeper's user, root, and names the key of the end that accepted the
connection: one that was made for another connection proves nothing here. docs/adr has the reasons.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from understudy_keeper.places import cut_after
from understudy_wire.addresses import split_port
from understudy_wire.certificate import make_certificate
from understudy_wire.errors import ProtocolError
from understudy_wire.frames import Frames, text
from understudy_wire.tls import context_with

GREETING_SECONDS = 15.0
"""Time for both ends to prove themselves, once they are connected."""
MUNGE_SECONDS = 10.0
CREDENTIAL_SECONDS = 60
CREDENTIAL_CHARACTERS_MAX = 4096
PORT_MAX = 65_535
CHALLENGE_BYTES = 16
_CHALLENGE = re.compile(r"[0-9a-f]{32}", re.ASCII)
"""All that a stranger puts into what root signs: digits, and no words."""

Sign = Callable[[bytes], str]
"""Raises OSError and subprocess.SubprocessError."""
Decode = Callable[[str], tuple[int, bytes]]
"""Credential → user id and payload. Raises OSError and subprocess.SubprocessError."""


@dataclass(frozen=True, slots=True)
class Identity:
    """This keeper's."""

    cluster: str
    sign: Sign
    decode: Decode
    user_id: int
    """User of all keepers: root."""
    context: ssl.SSLContext
    fingerprint: str

    def claim(self, role: str, fingerprint: str, challenge: str) -> bytes:
        return f"understudy keeper\n{self.cluster}\n{role}\n{fingerprint}\n{challenge}".encode()


def make_identity(cluster: str, sign: Sign, decode: Decode) -> Identity:
    pem, certificate = make_certificate()
    return Identity(cluster, sign, decode, os.geteuid(), context_with(pem), hashlib.sha256(certificate).hexdigest())


def accept(link: socket.socket, identity: Identity) -> Frames:
    """The end that was called proves itself first. Raises ProtocolError and OSError, also for a refused credential."""
    frames = Frames(identity.context.wrap_socket(link, server_side=True))
    try:
        challenge = _challenge(frames.receive())
        own = secrets.token_hex(CHALLENGE_BYTES)
        credential = _sign(identity, "called", identity.fingerprint, challenge)
        frames.send({"credential": credential, "challenge": own})
        _verify(identity, frames, identity.claim("calls", identity.fingerprint, own))
        frames.send({"type": "welcome"})
    except BaseException:
        frames.close()
        raise
    return frames


def connect(address: str, identity: Identity, seconds: float) -> Frames:
    """`address` is `host:port`; what is there may be anything. `seconds`: for each step. Raises ProtocolError and
    OSError.
    """
    host, port = split_port(address)
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ProtocolError(f"{address[:80]!r} is no address of a keeper")
    try:
        link = socket.create_connection((host, int(port)), timeout=seconds)
    except UnicodeError as error:
        raise ProtocolError(f"{host[:80]!r} is no name of a host") from error
    with cut_after(GREETING_SECONDS, link):
        return _connect(link, identity)


def _connect(link: socket.socket, identity: Identity) -> Frames:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the credential names the key instead
        secure = context.wrap_socket(link)
    except BaseException:
        link.close()
        raise
    frames = Frames(secure)
    try:
        _introduce(frames, identity, hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest())
    except BaseException:
        frames.close()
        raise
    return frames


def _introduce(frames: Frames, identity: Identity, fingerprint: str) -> None:
    challenge = secrets.token_hex(CHALLENGE_BYTES)
    frames.send({"challenge": challenge})
    answer = _verify(identity, frames, identity.claim("called", fingerprint, challenge))
    frames.send({"credential": _sign(identity, "calls", fingerprint, _challenge(answer))})
    if frames.receive().get("type") != "welcome":
        raise ProtocolError("the other end is no keeper")


def _verify(identity: Identity, frames: Frames, expected: bytes) -> dict[str, object]:
    message = frames.receive()
    try:
        user_id, payload = identity.decode(text(message, "credential", CREDENTIAL_CHARACTERS_MAX))
    except subprocess.SubprocessError as error:
        raise OSError(f"unmunge: {error}") from error
    if user_id != identity.user_id:
        raise ProtocolError(f"the other end is a program of user {user_id}, and no keeper")
    if payload != expected:
        raise ProtocolError("the credential of the other end is not for this connection")
    return message


def _challenge(message: dict[str, object]) -> str:
    challenge = text(message, "challenge", 2 * CHALLENGE_BYTES)
    if _CHALLENGE.fullmatch(challenge) is None:
        raise ProtocolError("the challenge of the other end is none of a keeper")
    return challenge


def _sign(identity: Identity, role: str, fingerprint: str, challenge: str) -> str:
    try:
        return identity.sign(identity.claim(role, fingerprint, challenge))
    except subprocess.SubprocessError as error:
        raise OSError(f"munge: {error}") from error


def decode(credential: str, munge_socket: Path | None) -> tuple[int, bytes]:
    """`unmunge` decodes each credential once. Raises OSError and subprocess.SubprocessError."""
    command = ["unmunge", "--numeric", *([f"--socket={munge_socket}"] if munge_socket else [])]
    done = subprocess.run(command, input=credential.encode(), capture_output=True, timeout=MUNGE_SECONDS, check=False)
    head, _, payload = done.stdout.partition(b"\n\n")
    values = {key.strip(): value.strip() for key, _, value in (line.partition(b":") for line in head.splitlines())}
    if done.returncode or values.get(b"STATUS") != b"0":
        why = done.stderr.decode(errors="replace").strip() or f"it ended with {done.returncode}"
        raise OSError(f"the credential is refused: unmunge: {why}")
    try:
        return int(values[b"UID"]), payload[: int(values[b"LENGTH"])]
    except (KeyError, ValueError) as error:
        raise OSError("the output of unmunge cannot be read") from error
