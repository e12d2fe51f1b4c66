"""Signals of other systems of the site: evidence for incidents, and the reason to quarantine nodes where the site wants
that.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.config import SignalEffect, Signals
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.xid_policy import Repair


def site_signals(snapshot: Snapshot, policy: Signals) -> Iterator[Finding]:
    if not snapshot.signals:
        return
    yield from _explanations(snapshot)
    for name in snapshot.threats_to:
        threat = threat_to(snapshot, name, policy)
        if threat is not None:
            yield Finding(
                Signal.SITE_FAULT,
                _rule(threat),
                name,
                threat.at,
                threat.words,
                _evidence(threat),
                detail=HardwareDetail(repair=Repair.NONE),
            )


def threat_to(snapshot: Snapshot, node: str, policy: Signals) -> SiteSignal | None:
    """Signal for which the site wants the node quarantined. A person who has resumed the node since answers for it."""
    cleared_at = snapshot.nodes[node].record.cleared_at
    for one in snapshot.threats_to.get(node, ()):
        if policy.effect_of(one.kind) is SignalEffect.ACT and one.at > cleared_at:
            return one
    return None


def is_blocked(snapshot: Snapshot, node: str, policy: Signals) -> bool:
    """No gang and no pool gets it as a spare."""
    threats = snapshot.threats_to.get(node, ())
    return any(policy.effect_of(one.kind).includes(SignalEffect.BLOCK) for one in threats)


def _explanations(snapshot: Snapshot) -> Iterator[Finding]:
    """Findings of open incidents alone: the signals themselves are stored, and shown."""
    for subject in snapshot.incidents:
        if subject.kind is SubjectKind.NODE:
            for one in snapshot.signals_on.get(subject.name, ()):
                yield Finding(Signal.SITE_SIGNAL, _rule(one), subject.name, one.at, one.words, _evidence(one))
        elif subject.kind is SubjectKind.DOMAIN:
            for one in snapshot.signals:
                if subject.name in one.targets:
                    yield Finding(
                        Signal.SITE_SIGNAL,
                        _rule(one),
                        "",
                        one.at,
                        one.words,
                        _evidence(one),
                        domain=subject.name,
                        explains=subject.rule,
                    )


def _rule(signal: SiteSignal) -> str:
    return f"signal.{signal.kind.value}"


def _evidence(signal: SiteSignal) -> Evidence:
    return Evidence(
        {
            "signal": signal.id,
            "source": signal.source,
            "targets": [*signal.targets],
            "at": signal.at,
            "until": signal.until,
        }
    )
