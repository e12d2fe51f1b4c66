"""TLS: the certificate, its key, and who signs certificates of clients, read again when their files change."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn

from understudy_controlplane.api.connections import Connections
from understudy_controlplane.api.server import Server

log = structlog.get_logger()

TICKS_BETWEEN_LOOKS = 50
"""uvicorn ticks ten times a second."""


class CertificateError(Exception):
    """Files cannot be used; the message has the cause and what to do."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: Path
    key: Path
    client_ca: Path | None = None  # certificates that may sign those of clients; None: clients need none

    def changed_at(self) -> tuple[int, ...]:
        """Other numbers after a change. Raises OSError."""
        found = [one.stat() for one in (self.certificate, self.key, self.client_ca) if one is not None]
        return tuple(number for one in found for number in (one.st_mtime_ns, one.st_ino, one.st_size))

    def context(self) -> ssl.SSLContext:
        """Raises CertificateError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            if self.key.stat().st_mode & 0o007:
                raise CertificateError(f"{self.key}: other users can read the key: chmod o= {self.key}")
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"{self.certificate} and {self.key} cannot be used: {error}; they have to be a certificate in PEM and "
                "its key, without a passphrase"
            ) from error

        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise CertificateError(
                    f"{self.client_ca} cannot be used: {error}; it has to hold certificates in PEM"
                ) from error
        return context


class TlsServer(Server):
    """The files are those of new connections; open ones keep what they began with."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        files: CertificateFiles,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config, connections, stopping)
        self._files = files
        self._loaded = files.changed_at()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._files.context()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_BETWEEN_LOOKS == 0:
            self.reload()
        return await super().on_tick(counter)

    def reload(self) -> None:
        """A pair that does not fit, as between the replacement of the two files, is left alone until it changes."""
        try:
            found = self._files.changed_at()
            if found == self._loaded:
                return
            self._loaded = found
            self.config.ssl = self._files.context()
        except (OSError, CertificateError) as error:
            log.warning("certificate_not_loaded", error=str(error))
        else:
            log.info("certificate_loaded", path=str(self._files.certificate))


def _no_passphrase() -> str:
    """OpenSSL would ask for it on the terminal."""
    return ""
