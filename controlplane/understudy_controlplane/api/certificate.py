"""When a certificate ends."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cryptography import x509


def ends_at(file: Path) -> float | None:
    """The first end of all certificates in a PEM file, in seconds since the epoch; None: it cannot be read now."""
    try:
        return _ends_at(file, file.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None  # as between the replacement of its bytes; the server goes on with the certificate before


@lru_cache(maxsize=4)
def _ends_at(file: Path, _changed_at: int) -> float:
    return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(file.read_bytes()))
