"""A private key on the curve P-256, and a certificate for it, without any program: Python's `ssl` makes none.

The certificate's signature is none at all, since seats compare the certificate's fingerprint and nothing else
(`tls.py`); for any other use it is worthless. OpenSSL calculates the public key again when it loads the private one,
and refuses a certificate that does not fit.
"""

from __future__ import annotations

import base64
import secrets

# https://csrc.nist.gov/pubs/sp/800/186/final, 3.2.1.3
_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_A = _P - 3
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None
"""None: the point at infinity."""

# Object identifiers, and the fields of a certificate (RFC 5480, 5280), in DER.
_EC_KEY = bytes.fromhex("06072a8648ce3d0201")
_P256 = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
_DATES = b"\x17\x0d700101000000Z\x17\x0d491231235959Z"
_NO_SIGNATURE = bytes.fromhex("3006020101020101")


def make_certificate() -> tuple[bytes, bytes]:
    """Private key and certificate as PEM, and the certificate as DER."""
    private = secrets.randbelow(_ORDER - 1) + 1
    certificate = _certificate(_public_key(private))
    key = _der(0x30, b"\x02\x01\x01" + _der(0x04, private.to_bytes(32, "big")) + _der(0xA0, _P256))
    return _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate), certificate


def _certificate(public_key: bytes) -> bytes:
    key = _der(0x30, _der(0x30, _EC_KEY + _P256) + _der(0x03, b"\0" + public_key))
    serial = b"\x02\x08" + (secrets.randbits(62) | 1 << 62).to_bytes(8, "big")
    name = _der(0x30, _der(0x31, _der(0x30, b"\x06\x03\x55\x04\x03" + _der(0x0C, b"understudy run"))))
    fields = b"\xa0\x03\x02\x01\x02" + serial + _ECDSA_SHA256 + name + _der(0x30, _DATES) + name + key
    return _der(0x30, _der(0x30, fields) + _ECDSA_SHA256 + _der(0x03, b"\0" + _NO_SIGNATURE))


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    assert length < 0x100
    size = bytes([length]) if length < 0x80 else bytes([0x81, length])
    return bytes([tag]) + size + content


def _pem(label: str, content: bytes) -> bytes:
    text = base64.encodebytes(content).decode().replace("\n", "")
    lines = "\n".join(text[start : start + 64] for start in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n".encode()


def _public_key(private: int) -> bytes:
    point: _Point = None
    for bit in f"{private:b}":
        point = _add(point, point)
        if bit == "1":
            point = _add(point, _BASE)
    assert point is not None
    return b"\x04" + b"".join(one.to_bytes(32, "big") for one in point)


def _add(one: _Point, other: _Point) -> _Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2 and (y1 + y2) % _P == 0:
        return None
    slope = (3 * x1 * x1 + _A) * pow(2 * y1, -1, _P) if one == other else (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P
