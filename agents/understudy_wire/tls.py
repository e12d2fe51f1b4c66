"""TLS between launcher and seats, with a key that is made for the job and that its seats pin.

A seat runs what the launcher sends and the launcher believes what seats report, on a network that other users' programs
can reach. The seat knows the fingerprint of the launcher's certificate from its command line, and the secret, by which
the launcher knows it, from its environment: both come through Slurm. So no authority is needed, and no clock is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import ssl
from dataclasses import dataclass, field

from understudy_wire.certificate import make_certificate
from understudy_wire.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class JobKey:
    """Launcher and seats of one job know each other by it."""

    pem: bytes = field(repr=False)
    """The launcher's private key and certificate. They are on no disk."""
    fingerprint: str
    """SHA-256 of the certificate. Public."""
    secret: str = field(repr=False)
    """What a seat sends to the launcher, once the connection is encrypted."""


def make_key() -> JobKey:
    pem, certificate = make_certificate()
    return JobKey(pem, hashlib.sha256(certificate).hexdigest(), secrets.token_hex(32))


def launcher_context(key: JobKey) -> ssl.SSLContext:
    return context_with(key.pem)


def context_with(pem: bytes) -> ssl.SSLContext:
    """Context of the end that accepts connections, with this key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is resumed
    holder = os.memfd_create("key")  # Python reads keys from files only
    try:
        os.write(holder, pem)
        context.load_cert_chain(f"/proc/self/fd/{holder}")
    finally:
        os.close(holder)
    return context


def connect_pinned(link: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    """The seat's end, once the launcher has proven its key. Raises ProtocolError and OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint is verified instead
    secure = context.wrap_socket(link)
    certificate = secure.getpeercert(binary_form=True) or b""
    if not hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), fingerprint):
        secure.close()
        raise ProtocolError("the program at the launcher's address does not have the key of this job's launcher")
    return secure


def is_secret(given: object, secret: str) -> bool:
    """`given` comes from JSON, which can also name half a character, which UTF-8 refuses."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="surrogatepass"), secret.encode())
