"""People whom a reverse proxy has signed in, such as by OpenID Connect: it names them in a header.

The header counts from the addresses of the proxy alone. A browser sends its cookie for the proxy with every request,
also with those that a page of another site causes: see `cross_site`.
"""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Callable

import structlog
from fastapi import Request
from starlette.requests import HTTPConnection

from understudy_controlplane.access.cross_site import changes_by_other_site
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Access
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.identity import Identity, Role
from understudy_wire.addresses import canonical

log = structlog.get_logger()

LOGGED_EVERY_SECONDS = 3600.0
NAME_CHARACTERS_MAX = 200
ACCOUNT_SECONDS = 300.0
ACCOUNTS_MAX = 10_000
RISING = ("user", "viewer", "operator", "admin")
"""Roles of people, from the one that may least."""


class NotBelieved(Exception):
    """The proxy's header cannot be used; the message has the cause."""


def account(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError, OSError):
        return None


class Proxy:
    def __init__(
        self,
        current: CurrentConfig,
        clock: Clock,
        note_forged: Callable[[], None],
        look_up: Callable[[str], int | None] = account,
    ) -> None:
        """`note_forged` counts a request with the header from elsewhere. `look_up`: user id of a name; it may block."""
        self._look_up = look_up
        self._accounts: dict[str, tuple[int, float]] = {}
        """Name → its user id, and until when that counts."""
        self._current = current
        self._clock = clock
        self._note_forged = note_forged
        self._logged_at = float("-inf")

    async def identity(self, request: Request, address: str) -> Identity | None:
        """Person whom the proxy names; None: it names none. Raises NotBelieved."""
        access = self._current.config.access
        names = request.headers.getlist(access.proxy_user_header) if access.proxy_addresses else []
        if not names:
            return None
        if address not in map(canonical, access.proxy_addresses):
            self._refuse(address, access.proxy_user_header)
            return None
        groups = request.headers.getlist(access.proxy_groups_header)
        if len(names) > 1 or len(groups) > 1:
            raise NotBelieved("the header of the proxy is there twice: the proxy has to replace what a client sends")
        name = names[0].strip(" \t")  # other white space would make one user of two
        if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
            raise NotBelieved(f"the header of the proxy names no user, or one of over {NAME_CHARACTERS_MAX} characters")
        role = _role(access, name, [one.strip(" \t") for one in (groups or [""])[0].split(",")])
        if role is None:
            raise NotBelieved(
                f"{name} has no role: [access] gives one neither to this user nor to a group of this user"
            )
        problem = changes_by_other_site(request, named=False)
        if problem is not None:
            raise NotBelieved(problem)
        if role is Role.USER:
            user_id = await self._user_id(name)
            return Identity(role, f"user {name} ({user_id})", "", address, user_id=user_id)  # as by MUNGE
        return Identity(role, f"{name} (proxy)", "", address)

    async def _user_id(self, name: str) -> int:
        """User id of the account on the control plane's host, as Slurm has it. Raises NotBelieved."""
        now = self._clock.monotonic()
        known = self._accounts.get(name)
        if known is None or now >= known[1]:
            found = await asyncio.to_thread(self._look_up, name)
            if found is None:
                raise NotBelieved(f"{name} has no account on the control plane's host: jobs of that name are not known")
            if len(self._accounts) >= ACCOUNTS_MAX:
                self._accounts.clear()
            self._accounts[name] = known = (found, now + ACCOUNT_SECONDS)
        return known[0]

    def names(self, request: HTTPConnection, address: str) -> str | None:
        """The user, for limits, whatever they may do. None: the request does not come from the proxy."""
        access = self._current.config.access
        if not access.proxy_addresses or address not in map(canonical, access.proxy_addresses):
            return None
        return request.headers.get(access.proxy_user_header, "").strip(" \t")[:NAME_CHARACTERS_MAX] or None

    def _refuse(self, address: str, header: str) -> None:
        self._note_forged()
        now = self._clock.monotonic()
        if now - self._logged_at >= LOGGED_EVERY_SECONDS:
            self._logged_at = now
            log.warning(
                "proxy_header_not_believed",
                address=address,
                header=header,
                remedy="if it is the proxy, add it to access.proxy_addresses; otherwise a client tries to be a person",
            )


def _role(access: Access, name: str, groups: list[str]) -> Role | None:
    given = [access.proxy_roles.get(name), *map(access.proxy_group_roles.get, groups)]
    found = max((RISING.index(role) for role in given if role is not None), default=None)
    return None if found is None else Role(RISING[found])
