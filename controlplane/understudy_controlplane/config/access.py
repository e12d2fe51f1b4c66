"""The section for people's access by other means than tokens in files."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from understudy_controlplane.config.section import Section


class Access(Section):
    munge_users: bool = Field(
        True,
        description="Users of the cluster need no token: by MUNGE they see the states of nodes and their own jobs, and "
        "act on these.",
    )
    munge_operators: tuple[str, ...] = Field(
        (),
        description="Names of users who by MUNGE get the role operator. Root on any node of the cluster can forge "
        "their credentials: name users only where you trust root of all nodes with that role.",
    )
    munge_admins: tuple[str, ...] = Field((), description="The same for the role admin.")
    addresses: tuple[str, ...] = Field(
        (),
        description="Further addresses with port by which users reach the control plane, where a proxy or NAT is in "
        'front of it: `["10.1.0.5:443"]`. A credential of a user counts for the address that it was made for.',
    )

    @model_validator(mode="after")
    def _roles_by_munge_need_munge(self) -> Self:
        if not self.munge_users and (self.munge_operators or self.munge_admins):
            raise ValueError("munge_operators and munge_admins need munge_users = true")
        return self
