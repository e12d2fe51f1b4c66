"""Alerts as Alertmanager's webhook sends them, version 4: which signal of the site each one is. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from understudy_controlplane.access.addresses import is_address
from understudy_controlplane.config import SignalKind, Signals
from understudy_controlplane.fleet.site_signal import ReportedSignal
from understudy_controlplane.fleet.topology import DomainKind
from understudy_wire.addresses import split_port

NODE_LABELS = ("node", "nodename", "hostname", "host", "instance")
KIND_LABEL = "understudy_kind"

OWN_ALERTS = "Understudy"
"""How the names of the control plane's own alerts begin: they are no news to it."""

SUMMARY_CHARACTERS_MAX = 500

Short = Annotated[str, Meta(max_length=4000, pattern=r"^[^\x00]*$")]
Texts = dict[Annotated[str, Meta(max_length=255)], Short]


class Alert(msgspec.Struct, frozen=True):
    """What else Alertmanager sends is ignored."""

    status: str  # firing or resolved
    labels: Texts
    annotations: Texts = {}
    fingerprint: Annotated[str, Meta(max_length=64, pattern=r"^[^\x00]*$")] = ""

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "an alert without a name")

    @property
    def key(self) -> str:
        if self.fingerprint:
            return self.fingerprint
        return hashlib.sha256(msgspec.json.encode(sorted(self.labels.items()))).hexdigest()[:32]

    def signal(self, source: str, targets: tuple[str, ...], policy: Signals) -> ReportedSignal:
        known = self.labels.get(KIND_LABEL, "")
        kind = SignalKind(known) if known in set(SignalKind) else policy.alerts.get(self.name, SignalKind.OTHER)
        words = self.annotations.get("summary") or self.annotations.get("description") or ""
        summary = f"{self.name}: {words}" if words else self.name
        return ReportedSignal(source, self.key, kind, targets, summary[:SUMMARY_CHARACTERS_MAX])


class AlertmanagerBody(msgspec.Struct, frozen=True):
    version: str
    alerts: Annotated[list[Alert], Meta(max_length=1000)]

    @property
    def counted(self) -> Iterator[Alert]:
        return (one for one in self.alerts if not one.name.startswith(OWN_ALERTS))


def targets_of(labels: Mapping[str, str], known_as: Callable[[str], str]) -> tuple[str, ...]:
    """The node that an alert names; else the domains. An alert about one node may have the label of its rack too.
    `known_as` is the name of a node or domain by its name or address; empty: not known.
    """
    for label in NODE_LABELS:
        for name in _node_names(labels.get(label, "")):
            if known := known_as(name):
                return (known,)
    domains = (f"{kind} {labels[kind]}" for kind in DomainKind if kind in labels)
    return tuple(known for one in domains if (known := known_as(one)))


def _node_names(value: str) -> Iterator[str]:
    """Names that "n1.example.org:9100" may stand for: itself, n1.example.org and n1. An address has no short name."""
    host = split_port(value)[0] if ":" in value else value
    short = "" if is_address(host) else host.partition(".")[0]
    yield from dict.fromkeys(name for name in (value, host, short) if name)
