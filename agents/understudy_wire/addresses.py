"""Addresses of hosts and ports of TCP: IPv4 and IPv6 alike."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

EVERY = "::"
"""Every address of this host: of IPv6 and IPv4, or of IPv4 alone where the kernel has no IPv6."""


def is_every(host: str) -> bool:
    """True for an address that a server binds to be reached at all of its host's."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def bound(host: str, port: int, reuse: bool = True) -> socket.socket:
    """A socket that does not listen yet. `reuse`: also of a port whose last connections have just ended. Raises
    OSError.
    """
    both = host == EVERY and socket.has_dualstack_ipv6()
    if host == EVERY and not both:
        host = "0.0.0.0"  # noqa: S104 - as the caller asks
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        if reuse:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(address)
    except BaseException:
        found.close()
        raise
    return found


@lru_cache(maxsize=32_768)  # each request asks several times for that of its sender
def canonical(address: str) -> str:
    """One spelling of each address. An IPv4 address within IPv6, as a socket of both shows it, is that IPv4 address;
    what is no address stays.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def with_port(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_port(text: str) -> tuple[str, str]:
    """Host, without brackets, and port of `host:port`; both may be empty or wrong."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port
