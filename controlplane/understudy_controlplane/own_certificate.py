"""A certificate that a site makes itself, with openssl: agents trust this one alone (`ca_file`)."""

from __future__ import annotations

import ipaddress
import subprocess
from pathlib import Path

from understudy_controlplane.config import ConfigError

DAYS = 825


def make_certificate(host: str, certificate: Path, key: Path) -> None:
    """For this name or address. Raises ConfigError."""
    try:
        name = f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        name = f"DNS:{host}"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    given = ["-days", str(DAYS), "-subj", "/CN=Understudy", "-addext", f"subjectAltName={name}"]
    usage = ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    try:
        done = subprocess.run(
            [*command, *given, *usage, "-keyout", str(key), "-out", str(certificate)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ConfigError(f"openssl cannot be run: {error}; install it, or leave --tls out") from error
    if done.returncode != 0:
        raise ConfigError(f"openssl failed: {' '.join(done.stderr.split())[:500]}; leave --tls out, or make the files")
