"""From findings to decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from understudy_controlplane.config import Config
from understudy_controlplane.decide import repair_actions, repair_cycle
from understudy_controlplane.decide.condemnation import Condemned, condemnations
from understudy_controlplane.decide.pool import fill_pool
from understudy_controlplane.decide.releases import releases
from understudy_controlplane.decide.round import Round
from understudy_controlplane.decide.table import SIGNAL_PRIORITY, Row, look_up, row_without_node
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import HANGS, Finding, HangDetail, Signal, SilenceDetail
from understudy_controlplane.fleet.node import NodeView, ValidationOrigin
from understudy_controlplane.fleet.snapshot import Snapshot


def decide(snapshot: Snapshot, findings: Sequence[Finding], config: Config) -> list[Decision]:
    """Decisions of this round, those that act with a plan. Repetitions are the caller's to leave out."""
    if mass := _mass_silence(findings):
        snapshot = replace(snapshot, mass_silence=mass)
    if mass := _mass_hang(findings):
        snapshot = replace(snapshot, mass_hang=mass)
    decisions: list[Decision] = []
    condemned: list[Condemned] = []
    begun: dict[str, ValidationOrigin | None] = {}
    by_node: dict[str, list[Finding]] = {}
    for finding in (*findings, *repair_cycle.due(snapshot, config)):
        by_node.setdefault(finding.node, []).append(finding)
    of_no_node = [(row_without_node(finding.signal), finding) for finding in by_node.pop("", ())]
    decisions += [_plain(*one) for one in of_no_node if one[0].action is Action.NOTHING]
    condemned += [one for one in of_no_node if one[0].action is not Action.NOTHING]
    for name, node in snapshot.nodes.items():
        own = by_node.get(name)
        if own is None:
            continue
        decisions += _remarks(node, own)
        chosen = _most_urgent(node, own)
        if chosen is None:
            continue
        row, finding = chosen
        if row.action in repair_actions.PLANNED_BY:
            decisions.append(repair_actions.carry_out(snapshot, row, finding, config, begun))
            if decisions[-1].action in (Action.REPAIR, Action.VALIDATE):
                begun[name] = row.origin
        elif row.action is not Action.NOTHING:
            evidence = finding.evidence.with_more({"generation": node.generation})
            condemned.append((row, replace(finding, evidence=evidence)))
        else:
            decisions.append(_plain(row, finding))
    current = Round(snapshot, config).with_condemned(
        frozenset(finding.node for _, finding in condemned if finding.signal not in HANGS)
    )
    decisions += condemnations(current, condemned)
    decisions += releases(snapshot, config)
    acting = [one for one in decisions if one.plan and one.action is not Action.RELEASE_JOB]
    if not acting:  # one thing after the other: a swap takes spares
        decisions += fill_pool(replace(current, condemned=frozenset(finding.node for _, finding in condemned)))
    return decisions


def _mass_silence(findings: Iterable[Finding]) -> str:
    nodes = {finding.node for finding in findings if isinstance(finding.detail, SilenceDetail) and finding.detail.mass}
    if not nodes:
        return ""
    return (
        f"{len(nodes)} agents fell silent together, which is taken for a fault of the control plane or of the network "
        "(`understudy hold` takes nodes that are really gone out of the count)"
    )


def _mass_hang(findings: Iterable[Finding]) -> str:
    alike = [finding.detail for finding in findings if isinstance(finding.detail, HangDetail) and finding.detail.mass]
    if not alike:
        return ""
    return (
        f"{max(one.together for one in alike)} gangs stopped at the same time, which is taken for a fault of the "
        "network, the storage or the control plane (`scontrol requeue` or `scancel` takes their jobs out of the count)"
    )


def _remarks(node: NodeView, findings: Iterable[Finding]) -> list[Decision]:
    """Findings that never change a state: each is worth one line."""
    remarks = [finding for finding in findings if finding.signal not in SIGNAL_PRIORITY]
    rows = [(look_up(node.record, finding.signal), finding) for finding in remarks]
    return [_plain(row, finding) for row, finding in rows if row is not None]


def _most_urgent(node: NodeView, findings: Iterable[Finding]) -> tuple[Row, Finding] | None:
    entered = [
        (row, finding)
        for finding in findings
        if finding.signal in SIGNAL_PRIORITY and (row := look_up(node.record, finding.signal)) is not None
    ]
    return min(entered, key=lambda pair: (SIGNAL_PRIORITY.index(pair[1].signal), pair[1].at), default=None)


def _plain(row: Row, finding: Finding) -> Decision:
    return Decision(
        row=row.number,
        subject=finding.label,
        action=Action.NOTHING,
        because=Because.RULE,
        reason=f"{finding.summary}: {row.why}",
        to_state=row.to,
        finding=finding,
        evidence=finding.evidence,
        opens_incident=finding.signal in (Signal.DOMAIN_FAULT, Signal.LAUNCHER_FAILED),
        request=finding.request,
        suspects=row.suspects,
        ends_suspicion=finding.suspicion,
    )
