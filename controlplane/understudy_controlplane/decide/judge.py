"""Turns findings into decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards, repair_actions, repair_cycle
from understudy_controlplane.decide.approvals import is_rejected, waits_from_before
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.failures import Failures
from understudy_controlplane.decide.job_moves import moves_asked
from understudy_controlplane.decide.job_releases import excluding_jobs, held_jobs, left_seats, release
from understudy_controlplane.decide.launcher_restarts import restarted
from understudy_controlplane.decide.needs import needs
from understudy_controlplane.decide.other_leader import breaker_for_other_leader
from understudy_controlplane.decide.pages import detectors_down, page, persons_needed, warnings_of_site
from understudy_controlplane.decide.pool import change_pool, pool_changes
from understudy_controlplane.decide.quarantines import condemnations
from understudy_controlplane.decide.spare_checks import checks_due
from understudy_controlplane.decide.table import SIGNAL_PRIORITY, WAITS_FOR_JOBS, Row, look_up, row_without_node
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Because, Decision
from understudy_controlplane.fleet.finding import (
    HANGS,
    DetectorDetail,
    Finding,
    HangDetail,
    Signal,
    SilenceDetail,
    failed_detectors,
    unjudged_nodes,
)
from understudy_controlplane.fleet.need import Need
from understudy_controlplane.fleet.node import FROM_SERVICE, OUT_OF_SERVICE, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot


class Judgement(NamedTuple):
    decisions: list[Decision]
    needs: tuple[Need, ...]


def decide(
    snapshot: Snapshot, findings: Sequence[Finding], config: Config, failures: Failures | None = None
) -> list[Decision]:
    return judge(snapshot, findings, config, failures or Failures(snapshot.now)).decisions


def judge(
    snapshot: Snapshot, findings: Sequence[Finding], config: Config, failures: Failures, known: Sequence[Need] = ()
) -> Judgement:
    """Decisions of this round, those that act with a plan, and what needs a person. Repetitions are left to the caller
    (`news`).

    One that fails stops no other (`failures`: with what has failed in this round before). Where all fail, nothing is
    done but to notify a person. `known`: the needs of the round before, which stay where those of this one fail.
    """
    current = Round(snapshot, config)
    decisions = failures.caught("all", None, lambda: _decide(snapshot, findings, config, failures))
    found = failures.caught("needs", (), lambda: needs(snapshot, decisions, config, findings), known)
    waiting = (
        *failures.caught("persons_needed", (), lambda: persons_needed(current, found)),
        *failures.caught("site_warnings", (), lambda: warnings_of_site(current)),
    )
    others = failures.caught("other_leader", (), lambda: breaker_for_other_leader(snapshot))
    down = failures.caught("page", (), lambda: detectors_down(current, [*findings, *failures.findings]))
    failed = _record(current, [*_of_no_node(failures.findings)])
    pages = [page(current, [*_of_no_node(some)]) for some in (waiting, down)]
    return Judgement([*decisions, *pages[0], *failed, *pages[1], *others], tuple(found))


def _decide(snapshot: Snapshot, findings: Sequence[Finding], config: Config, failures: Failures) -> list[Decision]:
    shown = replace(
        snapshot.round,
        mass_silence=_mass_silence(findings),
        mass_hang=_mass_hang(findings),
        failed_detectors=failed_detectors(findings),
        unjudged=unjudged_nodes([*findings, *failures.findings]),
    )
    snapshot = snapshot.with_round(shown)
    asked = failures.caught("moves", (), lambda: moves_asked(snapshot))
    due = [*_due(snapshot, config, failures)]
    shown = replace(shown, unjudged={**shown.unjudged, **unjudged_nodes(failures.findings)})
    snapshot = snapshot.with_round(shown)
    of_jobs = (
        *failures.caught("held_jobs", (), lambda: held_jobs(snapshot)),
        *failures.caught("exclusions", (), lambda: excluding_jobs(snapshot)),
        *failures.caught("seats_left", (), lambda: left_seats(snapshot)),
    )
    entered = [*_of_nodes(snapshot, (*findings, *asked, *due), config), *_of_no_node((*findings, *asked, *of_jobs))]
    condemned = [one.finding for one in entered if _is_condemned(one)]
    nodes = frozenset(one.node for one in condemned if one.signal not in HANGS | {Signal.GANG_STOPPED})
    taken_out = {one.finding.node: one.finding for one in entered if one.row.action in TAKES_OUT}
    if taken_out:
        faults = {name: (one.signal.value, one.rule) for name, one in taken_out.items()}
        snapshot = snapshot.with_round(replace(shown, condemned_for=faults))
    if any(one.signal is not Signal.GANG_STOPPED for one in condemned):  # their gangs may need every spare
        entered = [one for one in entered if one.finding.signal is not Signal.SPARE_CHECK_DUE]
    current = Round(snapshot, config).with_condemned(nodes)
    decisions: list[Decision] = []
    for carry_out in (*dict.fromkeys(CARRIED_OUT_BY.values()), _check_spares):
        if carry_out is change_pool and not current.acting:  # a swap takes spares
            entered += _of_no_node(failures.caught("pool", (), partial(pool_changes, current)))
        own = [one for one in entered if _carried_out_by(one) is carry_out]
        current, carried_out = failures.carried_out(current, carry_out, own, of_gangs=carry_out is condemnations)
        decisions += failures.approved(current, carried_out)
        acting = any(one.plan and one.action is not Action.RELEASE_JOB for one in decisions)
        current = replace(current.without(carried_out), acting=acting or bool(current.left_out))
    return decisions


def _due(snapshot: Snapshot, config: Config, failures: Failures) -> Iterator[Finding]:
    """Findings that are due, of each node and of the spares together."""
    tried = repair_cycle.attempts_by_node(snapshot)
    for node in repair_cycle.concerned(snapshot):
        look = partial(repair_cycle.due, snapshot, node, tried.get(node.name, ()), config)
        yield from failures.caught("due", (node.name,), look)
    yield from failures.caught("spare_checks", (), lambda: checks_due(snapshot, config))


def _of_no_node(findings: Iterable[Finding]) -> Iterator[Entered]:
    for finding in findings:
        if not finding.node:
            yield Entered(row_without_node(finding.signal), finding)


def _of_nodes(snapshot: Snapshot, findings: Iterable[Finding], config: Config) -> Iterator[Entered]:
    by_node: dict[str, list[Finding]] = {}
    for finding in findings:
        by_node.setdefault(finding.node, []).append(finding)
    for name in snapshot.nodes:
        if name in by_node:
            node = snapshot.nodes[name]
            yield from _remarks(node, by_node[name])
            yield from _most_urgent(snapshot, node, by_node[name], config)


def _mass_silence(findings: Sequence[Finding]) -> str:
    nodes = {finding.node for finding in findings if isinstance(finding.detail, SilenceDetail) and finding.detail.mass}
    if not nodes:
        return _mass_not_known(findings, "silence", "many agents fell silent")
    return (
        f"{len(nodes)} agents fell silent together, which is taken for a fault of the control plane or of the network "
        "(`understudy node hold` takes nodes that are really gone out of the count)"
    )


def _mass_hang(findings: Sequence[Finding]) -> str:
    alike = [finding.detail for finding in findings if isinstance(finding.detail, HangDetail) and finding.detail.mass]
    if not alike:
        return _mass_not_known(findings, "hang", "many gangs stopped")
    return (
        f"{max(one.together for one in alike)} gangs stopped at the same time, which is taken for a fault of the "
        "network, the storage or the control plane (`scontrol requeue` or `scancel` takes their jobs out of the count)"
    )


def _mass_not_known(findings: Iterable[Finding], detector: str, what: str) -> str:
    seen = (one.detail for one in findings if isinstance(one.detail, DetectorDetail))
    if not any(one.detector == detector and one.mass for one in seen):
        return ""
    return f"{what}, and whether that was together is not known: detector {detector} failed"


def _remarks(node: NodeView, findings: Iterable[Finding]) -> Iterator[Entered]:
    """Findings that never change a state: each is worth one line."""
    for finding in findings:
        if finding.signal not in SIGNAL_PRIORITY and (row := look_up(node.record, finding.signal)) is not None:
            yield Entered(row, finding)


def _most_urgent(snapshot: Snapshot, node: NodeView, findings: Iterable[Finding], config: Config) -> list[Entered]:
    """One at most; the hang of a gang there beside what may wait, or may be held back; and, to be recorded, one whose
    rule only observes, that was known before mode act, or that was rejected: it must not hide what the others find.
    """
    entered = [
        Entered(row, finding)
        for finding in findings
        if finding.signal in SIGNAL_PRIORITY and (row := look_up(node.record, finding.signal)) is not None
    ]
    entered.sort(key=lambda one: (SIGNAL_PRIORITY.index(one.finding.signal), one.finding.at))
    observed = [
        one
        for one in entered
        if guards.only_observes(node, one.row, one.finding, config)
        or (node.state not in OUT_OF_SERVICE and waits_from_before(snapshot, one.finding))
        or is_rejected(snapshot, one.finding)
    ]
    if observed:  # a test of the node would take it out of service for what the rule only observes
        entered = [one for one in entered if one not in observed and one.row.origin not in FROM_SERVICE]
    waits = bool(entered) and (entered[0].finding.signal in WAITS_FOR_JOBS or _is_condemned(entered[0]))
    hangs = [one for one in entered[1:] if waits and one.finding.signal in HANGS]
    return observed[:1] + entered[:1] + hangs[:1]


def _carried_out_by(entered: Entered) -> Callable[[Round, Sequence[Entered]], list[Decision]]:
    is_check = entered.finding.signal is Signal.SPARE_CHECK_DUE
    return _check_spares if is_check else CARRIED_OUT_BY[entered.row.action]


def _check_spares(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    """Last, in a round in which nothing else acts: a gang that waits for nodes may have taken the spare."""
    free = [one for one in entered if one.finding.node not in current.planned]
    return [] if current.acting else repair_actions.carry_out(current, free)


def _is_condemned(entered: Entered) -> bool:
    return CARRIED_OUT_BY[entered.row.action] is condemnations


def _record(_current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [_plain(*one) for one in entered]


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
        clears=finding.signal is Signal.RELEASE_ASKED,
        request=finding.request,
        suspects=row.suspects,
        ends_suspicion=finding.suspicion,
    )


CARRIED_OUT_BY: Mapping[Action, Callable[[Round, Sequence[Entered]], list[Decision]]] = {
    Action.NOTHING: _record,
    Action.REPAIR: repair_actions.carry_out,
    Action.VALIDATE: repair_actions.carry_out,
    Action.ASK_PERSON: repair_actions.carry_out,
    Action.TAKE_BACK: repair_actions.carry_out,
    Action.RETURN: repair_actions.carry_out,
    Action.LET_GO: repair_actions.carry_out,
    Action.RESTORE_WEIGHT: repair_actions.carry_out,
    Action.HOLD: repair_actions.carry_out,
    Action.QUARANTINE: condemnations,
    Action.DRAIN: condemnations,
    Action.DRAIN_AGAIN: condemnations,
    Action.MOVE_GANG: condemnations,
    Action.RESTART_GANG: condemnations,
    Action.OPEN_BREAKER: condemnations,
    Action.RELEASE_JOB: release,
    Action.FILL_POOL: change_pool,
    Action.LEAVE_POOL: change_pool,
    Action.CREDIT_TIME: restarted,
    Action.PAGE: page,
}
"""The function that carries the action of a row out: it gets all findings that entered such rows, asks the guards and
plans. In this order.
"""
