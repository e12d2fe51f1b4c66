"""What a provider of nodes is asked."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from understudy_controlplane.fleet.topology import DomainKind


class Ask(StrEnum):
    REPORT = "report"  # a node or rack has this fault
    REPLACE = "replace"  # the same, and it is to be replaced
    EVENTS = "events"  # which maintenance and retirements are planned


def in_words(of_provider: Mapping[str, Any]) -> str:
    """What a ticket has of the provider, for people; empty: the provider is not asked."""
    asked = f"{of_provider['asked']}: " if "asked" in of_provider else ""
    if "error" in of_provider:
        return f"{asked}{of_provider['error']}"
    if "ticket" not in of_provider:
        return f"{asked}no answer yet" if asked else ""
    number, summary = of_provider["ticket"], of_provider.get("summary")
    return f"{asked}{f'ticket {number}' if number else 'refused'}{f', {summary}' if summary else ''}"


def is_rack(target: str) -> bool:
    """Its tickets are closed from the beginning: a person only reads of it."""
    return target.startswith(f"{DomainKind.RACK.value} ")
