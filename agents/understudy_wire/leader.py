"""Who leads: what a control plane names itself with each answer, and what agents pass on of that."""

from __future__ import annotations

import msgspec

from understudy_wire.values import Name, Size, Text

LEADER_HEADER = "Understudy-Leader"
"""Header of each answer of a control plane, refusals included: installation and term."""

LEADERS_PER_REPORT_MAX = 8


class HeardLeader(msgspec.Struct, frozen=True):
    """A control plane that answers an agent."""

    installation: Name  # of its database: made at random with it, and the same in each copy
    term: Size  # higher for each control plane that takes the lead of the installation, and after each start
    url: Text  # at which the agent asks it


def header_of(installation: str, term: int) -> str:
    return f"{installation} {term}"


def leader_of(header: str, url: str) -> HeardLeader | None:
    """None: the header is none of a control plane."""
    installation, _, term = header.partition(" ")
    try:
        return msgspec.convert({"installation": installation, "term": int(term), "url": url}, HeardLeader)
    except (ValueError, msgspec.ValidationError):
        return None
