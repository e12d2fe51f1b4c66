"""A private key on the curve P-256 and its certificate. Peers pin the fingerprint and check nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

_DATES = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, tzinfo=UTC))
"""Dates are not verified: the clocks of two nodes may differ."""


def make_certificate() -> tuple[bytes, bytes]:
    """Private key and certificate as PEM, and the certificate as DER."""
    # Imported here: it takes 50 ms, and seats make no key.
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "understudy")])
    serial = x509.random_serial_number()
    certificate = x509.CertificateBuilder(name, name, key.public_key(), serial, *_DATES).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM), certificate.public_bytes(Encoding.DER)
