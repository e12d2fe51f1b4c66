"""When a certificate ends. Python's own module reads that of a peer only, so this reads the field itself."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _VERSION_TAG = 0x17, 0xA0


def ends_at(file: Path) -> float | None:
    """The first end of all certificates in a PEM file, in seconds since the epoch; None: it cannot be read now."""
    try:
        return _ends_at(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, IndexError):
        return None  # as between the replacement of its bytes; the server goes on with the certificate before


@lru_cache(maxsize=4)
def _ends_at(file: Path, _changed_at: int) -> float | None:
    found = _PEM.findall(file.read_text(encoding="ascii"))
    return min((_not_after(ssl.PEM_cert_to_DER_cert(one)) for one in found), default=None)


def _not_after(der: bytes) -> float:
    """RFC 5280: Certificate → TBSCertificate → version (optional), serial, signature, issuer, validity."""
    (_, certificate), *_ = _elements(der)
    (_, to_be_signed), *_ = _elements(certificate)
    fields = list(_elements(to_be_signed))
    validity = fields[4 if fields[0][0] == _VERSION_TAG else 3][1]
    tag, text = list(_elements(validity))[1]
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element of a DER sequence."""
    at = 0
    while at < len(content):
        tag, length, at = content[at], content[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(content[at : at + size]), at + size
        yield tag, content[at : at + length]
        at += length
