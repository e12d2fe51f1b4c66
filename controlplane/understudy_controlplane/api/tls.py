"""TLS: the certificate and its key, read again when their files change."""

from __future__ import annotations

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
    """Certificate and key cannot be used; the message has the cause and what to do."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: Path
    key: Path

    def changed_at(self) -> tuple[int, ...]:
        """Other numbers after a change. Raises OSError."""
        found = (self.certificate.stat(), self.key.stat())
        return tuple(number for one in found for number in (one.st_mtime_ns, one.st_ino, one.st_size))

    def check(self) -> None:
        """Raises CertificateError."""
        try:
            if self.key.stat().st_mode & 0o007:
                raise CertificateError(f"{self.key}: other users can read the key: chmod o= {self.key}")
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(
                f"{self.certificate} and {self.key} cannot be used: {error}; they have to be a certificate in PEM and "
                "its key, without a passphrase"
            ) from error

    def load_into(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)


class TlsServer(Server):
    """New connections get the certificate that is in the files; open ones keep the one that they have."""

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

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_BETWEEN_LOOKS == 0:
            self.reload()
        return await super().on_tick(counter)

    def reload(self) -> None:
        """A pair that does not fit, as between the replacement of the two files, is left alone until it changes."""
        context = self.config.ssl
        try:
            found = self._files.changed_at()
            if found == self._loaded or context is None:
                return
            self._loaded = found
            self._files.check()
            self._files.load_into(context)
        except (OSError, CertificateError) as error:
            log.warning("certificate_not_loaded", error=str(error))
        else:
            log.info("certificate_loaded", path=str(self._files.certificate))


def _no_passphrase() -> str:
    """OpenSSL would ask for it on the terminal."""
    return ""
