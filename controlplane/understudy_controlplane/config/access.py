"""The section for people's access by other means than tokens in files."""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from understudy_controlplane.config.section import Section

Who = Annotated[str, Field(min_length=1)]
"""An empty name would be that of all who have none."""
ProxyRole = Literal["user", "viewer", "operator", "admin"]
HEADER = "^[A-Za-z0-9-]+$"


class Access(Section):
    munge_users: bool = Field(
        True,
        description="Users of the cluster need no token: by MUNGE they see the states of nodes and their own jobs, and "
        "act on these.",
    )
    munge_roles: dict[Who, Literal["operator", "admin"]] = Field(
        {},
        description='Roles of users by MUNGE: `munge_roles = { bob = "admin" }`. Root on any node of the cluster can '
        "forge their credentials.",
    )
    addresses: tuple[str, ...] = Field(
        (),
        description="Further addresses with port by which users reach the control plane through a proxy or NAT: "
        '`["10.1.0.5:443"]`.',
    )

    session_hours: ClassVar[float] = 12.0
    """Time after which a browser has to log in again. A session also ends with the token from which it was made."""

    proxy_addresses: tuple[str, ...] = Field(
        (),
        description="Addresses of a [reverse proxy](security.md#people-whom-a-reverse-proxy-signs-in) that signs "
        "people in. Its header is believed from there alone. Empty: no header is believed.",
    )
    proxy_user_header: str = Field(
        "X-Remote-User",
        pattern=HEADER,
        description="Header in which the proxy names the user. It has to remove what clients send in it.",
    )
    proxy_groups_header: str = Field(
        "X-Remote-Groups", pattern=HEADER, description="Header with the groups of that user, separated by commas."
    )
    proxy_roles: dict[Who, ProxyRole] = Field(
        {}, description='Roles of users whom the proxy names: `proxy_roles = { bob = "admin" }`.'
    )
    proxy_group_roles: dict[Who, ProxyRole] = Field(
        {},
        description="Roles of groups. The highest role of a user counts; without one the user is refused. Role "
        "`user` only where the proxy names users of Slurm.",
    )

    @field_validator("proxy_addresses")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for one in addresses:
            ipaddress.ip_address(one)
        return addresses

    @model_validator(mode="after")
    def _roles_by_munge_need_munge(self) -> Self:
        if not self.munge_users and self.munge_roles:
            raise ValueError("munge_roles needs munge_users = true")
        return self
