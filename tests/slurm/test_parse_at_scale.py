"""12,500 nodes and 2,000 jobs are read in a fraction of a second. The bounds are generous: they catch a regression,
`make bench` measures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.slurm_text import GANG, JOBS, NODES, jobs_text, nodes_text
from tests.stopwatch import best_processor_seconds
from understudy_controlplane.slurm import parse
from understudy_controlplane.slurm.parse import JobReader, NodeReader, parse_jobs, parse_nodes

pytestmark = pytest.mark.integration


@pytest.mark.timed
def test_a_large_cluster_is_read_within_a_fraction_of_a_second() -> None:
    nodes, jobs = nodes_text(), jobs_text()
    assert best_processor_seconds(lambda: parse_nodes(nodes), 5) < 0.3
    assert best_processor_seconds(lambda: parse_jobs(jobs), 5) < 0.25


def test_a_cluster_that_stays_as_it_was_is_read_in_no_time() -> None:
    reader, text = NodeReader(), nodes_text()
    reader.read(text)
    assert best_processor_seconds(lambda: reader.read(text), 5) < 0.1


def test_the_generated_cluster_is_one() -> None:
    nodes, jobs = parse_nodes(nodes_text()), parse_jobs(jobs_text())
    assert (len(nodes), len({node.name for node in nodes}), len(jobs)) == (NODES, NODES, JOBS)
    assert sum(node.draining for node in nodes) == NODES // 500
    gangs = [job for job in jobs if job.state == "RUNNING"]
    assert len({name for job in gangs for name in job.nodes}) == len(gangs) * GANG == NODES // GANG * GANG
    assert gangs[0].comment == "understudy note=a b, JobState=FAILED"


def test_what_changed_is_read_again_and_what_did_not_is_the_same_value() -> None:
    reader = NodeReader()
    before = reader.read(nodes_text(10))
    after = reader.read(nodes_text(10).replace("Port=17003 ", "Port=18003 "))
    assert [node.port for node in after if node not in before] == [18003]
    assert [old is new for old, new in zip(before, after, strict=True)].count(False) == 1
    assert [node.name for node in reader.read(nodes_text(3))] == ["c1", "c2", "c3"]


def test_a_job_is_read_again_when_it_changes_and_not_because_its_clocks_go_on() -> None:
    reader, text = JobReader(), jobs_text(10, nodes=40)
    before = reader.read(text)
    later = text.replace("RunTime=00:00:15", "RunTime=1-00:00:16").replace("LastSchedEval=2026", "LastSchedEval=2027")
    assert later != text
    assert all(old is new for old, new in zip(before, reader.read(later), strict=True))
    changed = reader.read(later.replace("JobState=RUNNING", "JobState=COMPLETING", 1))
    assert [new.state for old, new in zip(before, changed, strict=True) if old is not new] == ["COMPLETING"]


@pytest.mark.parametrize("name", ["x RunTime=7 y", "x RunTime=a JobState=b y", "x LastSchedEval= y"])
def test_no_text_of_a_user_hides_that_a_job_has_changed(name: str) -> None:
    reader, text = JobReader(), jobs_text(1).replace("JobName=gang", f"JobName={name}")
    assert [job.state for job in reader.read(text)] == ["RUNNING"]
    assert [job.state for job in reader.read(text.replace("JobState=RUNNING", "JobState=COMPLETING"))] == ["COMPLETING"]


def test_fifty_thousand_jobs_that_stay_as_they_were_are_read_in_a_fraction_of_a_second() -> None:
    """Their first reading takes seconds; what changes later is read again, job by job."""
    reader, text = JobReader(), jobs_text(50_000)
    assert len(reader.read(text)) == 50_000
    assert best_processor_seconds(lambda: reader.read(text), 3) < 0.8


KEYS = ["State", "Gres", "Reason", "Comment", "ReqNodeList", "NodeList", "Partitions"]


@pytest.mark.parametrize("key", ["State", "NodeList", "Reason"])
@given(
    pairs=st.lists(
        st.tuples(st.sampled_from(KEYS), st.text("ab=X[ ]\n(null)", max_size=8)),
        max_size=6,
    )
)
def test_one_field_is_found_as_all_fields_would_be(key: str, pairs: list[tuple[str, str]]) -> None:
    record = "NodeName=n1" + "".join(f" {name}={value}" for name, value in pairs)
    assert parse._value(record, key) == parse._pairs(record).get(key)
