"""Open incidents end, and a round adds to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from tests import builders as b
from understudy_controlplane.decide.incidents import CAUSE_GONE, JOB_ENDED, NOTHING_DONE, STEPS_AGAIN, incident_news
from understudy_controlplane.detect.common_cause import domain_of
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.subject import Subject


def finding(signal: Signal, node: str = "n2") -> Finding:
    return Finding(signal, "xid.79", node, b.NOW, "fell off the bus")


def opened(number: int, subject: Subject) -> dict[Subject, OpenIncident]:
    rule = subject.rule or "xid.79"
    return {subject: OpenIncident(number, subject, rule, "hardware_fault", "fell off the bus", b.NOW - 60)}


GANG = opened(3, Subject.of_gang(b.job().key))
HUNG = Finding(Signal.GANG_HUNG_UNNAMED, "hang", "", b.NOW - 90, "no step has ended", job=b.job().key)
FAILED = replace(HUNG, signal=Signal.LAUNCHER_FAILED)
SWITCH = opened(5, Subject.of_domain("switch leaf1", "silence.mass"))
BEHIND = Finding(
    Signal.DOMAIN_FAULT, "silence.mass", "", b.NOW, "all silent", domain="switch leaf1", nodes=("n1", "n2")
)


@pytest.mark.parametrize(
    ("node", "findings", "over"),
    [
        (b.node("n2"), [], True),
        (b.node("n2"), [finding(Signal.HEALTH_SUSPECTED)], True),
        (b.node("n2"), [finding(Signal.HARDWARE_FAULT, "n3")], True),
        (b.node("n2"), [finding(Signal.HARDWARE_FAULT)], False),
        (b.node("n2", heard_at=None), [], False),
        (b.node("n2", NodeState.SUSPECT), [], False),
        (b.node("n2", NodeState.QUARANTINED), [], False),
    ],
)
def test_an_incident_is_over_when_its_node_is_in_service_heard_and_not_accused(
    node: NodeView, findings: list[Finding], over: bool
) -> None:
    news = incident_news(b.snapshot(node), findings, opened(7, Subject.of_node("n2")))
    assert news.over == (((7, NOTHING_DONE),) if over else ())


def test_findings_on_a_node_are_added_to_its_incident_and_to_no_other() -> None:
    found = finding(Signal.RECORDED)
    incidents = opened(7, Subject.of_node("n2")) | opened(8, Subject.of_node("n9"))
    news = incident_news(b.snapshot(), [found, finding(Signal.RECORDED, "n3")], incidents)
    assert news.evidence == ((7, found),)
    assert news.over == ((7, NOTHING_DONE),), "a node that Slurm no longer knows is not known to be well"


@pytest.mark.parametrize(
    ("advanced_at", "found", "outcome"),
    [
        (b.NOW - 90, [HUNG], ""),
        (b.NOW - 90, [], ""),
        (b.NOW - 1, [], STEPS_AGAIN),
        (b.NOW - 1, [FAILED], ""),
    ],
)
def test_a_gangs_incident_is_over_when_it_steps_again(advanced_at: float, found: list[Finding], outcome: str) -> None:
    job = b.job()
    tables = {job.key: b.step_table([[0.1] * 20] * 4, advanced_at=advanced_at)}
    news = incident_news(b.snapshot(jobs=[job], tables=tables), found, GANG)
    assert news.over == (((3, outcome),) if outcome else ())


def test_a_gangs_incident_is_over_when_its_job_has_ended_and_not_while_it_is_requeued() -> None:
    ended = b.snapshot(jobs=[b.job(state="COMPLETED")])
    assert incident_news(ended, [], GANG).over == ((3, JOB_ENDED),)
    assert incident_news(b.snapshot(), [], GANG).over == ((3, JOB_ENDED),), "Slurm has forgotten it"
    assert incident_news(b.snapshot(jobs=[b.job(state="PENDING")]), [], GANG).over == ()
    assert incident_news(b.snapshot(read_at=None), [], GANG).over == (), "nothing is known of jobs yet"


def test_a_domains_incident_is_over_when_its_cause_is_no_longer_found() -> None:
    assert incident_news(b.snapshot(), [BEHIND], SWITCH).over == ()
    assert incident_news(b.snapshot(), [], SWITCH).over == ((5, CAUSE_GONE),)
    assert incident_news(b.snapshot(started_at=b.NOW - 60), [], SWITCH).over == (), "it may not be found again yet"


class Jobs(dict[JobKey, Job]):
    """Counts how often they are gone through."""

    walks = 0

    def __iter__(self) -> Iterator[JobKey]:
        self.walks += 1
        return super().__iter__()


def test_no_incident_of_a_gang_goes_through_all_jobs() -> None:
    jobs = Jobs({job.key: job for job in (b.job(job_id=number) for number in range(1, 6))})
    incidents = {one: opened(number, one)[one] for number, one in enumerate(map(Subject.of_gang, [*jobs][:4]))}
    ended = opened(9, Subject.of_gang(b.job(job_id=9).key))
    jobs.walks = 0
    news = incident_news(b.changed(b.snapshot(), jobs=jobs), [HUNG], incidents | ended)
    assert (news.over, jobs.walks) == (((9, JOB_ENDED),), 0)


def test_a_hang_that_names_a_node_belongs_to_the_gang_and_is_evidence_about_the_node() -> None:
    named = replace(HUNG, signal=Signal.GANG_HUNG, node="n2", nodes=("n2",))
    node = opened(7, Subject.of_node("n2"))
    assert incident_news(b.snapshot(), [named], GANG | node).evidence == ((3, named), (7, named))


class TestTheDomainOfNodesThatFailAlike:
    DOMAINS: ClassVar[dict[str, tuple[str, ...]]] = {
        "partition all": tuple(f"n{i}" for i in range(1, 9)),
        "switch leaf1": ("n1", "n2", "n3", "n4"),
        "rack r1": ("n1", "n2"),
    }

    @pytest.mark.parametrize(
        ("nodes", "domain"),
        [
            ({"n1", "n2"}, "rack r1"),
            ({"n1", "n2", "n3"}, "switch leaf1"),
            ({"n1", "n3"}, "switch leaf1"),
            ({"n3"}, "fleet"),
            ({"n1", "n2", "n3", "n5"}, "fleet"),
            ({f"n{i}" for i in range(1, 9)}, "fleet"),
        ],
    )
    def test_is_the_smallest_that_contains_them_all(self, nodes: set[str], domain: str) -> None:
        assert domain_of(b.snapshot(domains=self.DOMAINS), "silence.mass", nodes) == domain

    def test_stays_that_of_their_open_incident_as_they_become_more(self) -> None:
        rack = Subject.of_domain("rack r1", "silence.mass")
        known = OpenIncident(5, rack, "silence.mass", "domain_fault", "", b.NOW, nodes=("n1", "n2"))
        snapshot = b.snapshot(domains=self.DOMAINS, incidents={rack: known})
        assert domain_of(snapshot, "silence.mass", {"n1", "n2", "n3", "n5"}) == "rack r1"
        assert domain_of(snapshot, "driver.silent", {"n1", "n3"}) == "switch leaf1"
        assert domain_of(snapshot, "silence.mass", {"n5", "n6"}) == "fleet"
