"""A certificate that a site makes itself: agents trust this one alone (`ca_file`)."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from understudy_controlplane.config import ConfigError

DAYS = 825


def make_certificate(host: str, certificate: Path, key: Path) -> None:
    """Writes both files, for this name or address. Raises ConfigError and OSError."""
    try:
        subject = _subject(host)
    except ValueError as error:
        raise ConfigError(f"{host!r} is no name of a host: {error}") from error
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Understudy")])
    now = datetime.now(UTC)
    dates = (now - timedelta(hours=1), now + timedelta(days=DAYS))
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number(), *dates)
    made = (
        builder.add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, SHA256())
    )
    key.touch(mode=0o600)
    try:
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        certificate.write_bytes(made.public_bytes(Encoding.PEM))
    except OSError:  # half of a pair would be kept by the next run
        key.unlink(missing_ok=True)
        certificate.unlink(missing_ok=True)
        raise


def _subject(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
