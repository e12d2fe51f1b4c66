"""What scontrol printed on a real cluster is read as it was meant, whatever people wrote into it.

The files in `data` are recorded with `scontrol --all show KIND -o` under TZ=UTC, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import REPOSITORY
from tests.garbage import garbage_of
from understudy_controlplane.fleet.slurm import (
    HETEROGENEOUS_JOB,
    WAITING_TASKS,
    ArrayTask,
    SlurmJob,
    TopologyUnit,
    UnitKind,
)
from understudy_controlplane.slurm.parse import (
    ambiguous,
    epoch_seconds,
    parse_jobs,
    parse_nodes,
    parse_reservations,
    parse_topology,
    parse_topology_names,
)
from understudy_controlplane.slurm.protocol import SlurmError

DATA = Path(__file__).parent / "data"


def recorded(kind: str, version: str = "22.05") -> str:
    return (DATA / f"{kind}-{version}.txt").read_text(encoding="utf-8")


def job_line(job_id: int) -> str:
    return next(line for line in recorded("jobs").split("\n") if line.startswith(f"JobId={job_id} "))


def job(text: str) -> SlurmJob:
    (found,) = parse_jobs(text)
    return found


def test_a_job_shows_when_it_was_suspended_or_resumed_last() -> None:
    line = job_line(1)
    assert job(line).suspended_or_resumed_at is None
    resumed = line.replace("SuspendTime=None SecsPreSuspend=0", "SuspendTime=2026-11-21T12:40:00 SecsPreSuspend=88")
    assert job(resumed).suspended_or_resumed_at == epoch_seconds("2026-11-21T12:40:00")
    assert parse_jobs(line.replace("MCS_label=N/A", "MCS_label= SuspendTime=2026-11-21T12:40:00")) == []


def test_nodes_are_read_with_state_reason_and_address() -> None:
    nodes = {node.name: node for node in parse_nodes(recorded("nodes"))}
    assert list(nodes) == [f"n{number}" for number in range(1, 9)]
    assert (nodes["n1"].base_state, set(nodes["n1"].flags)) == ("ALLOCATED", {"RESERVED"})
    assert (nodes["n1"].address, nodes["n1"].port, nodes["n1"].partitions) == ("127.0.0.1", 30775, ("train",))
    assert (nodes["n1"].gres, nodes["n1"].weight) == ("gpu:8", 1)
    assert (nodes["n1"].cpus, nodes["n1"].memory_mb, nodes["n1"].tmp_disk_mb) == (16, 1024, 0)
    assert nodes["n8"].down
    assert (nodes["n8"].reason, nodes["n8"].reason_user) == ("dead", "root")


def test_a_reason_keeps_its_brackets_and_equals_signs_and_loses_only_who_and_when() -> None:
    node = parse_nodes(recorded("nodes"))[1]
    assert node.reason == "understudy: xid 79 on 0000:1b:00.0 [rule 7] key=v State=IDLE a@b"
    assert (node.reason_user, node.reason_at) == ("root", epoch_seconds("2026-11-21T12:38:36"))
    assert (node.base_state, set(node.flags)) == ("ALLOCATED", {"DRAIN"})


@pytest.mark.parametrize(
    ("state", "base", "flags"),
    [
        ("IDLE", "IDLE", set()),
        ("IDLE*", "IDLE", {"NOT_RESPONDING"}),
        ("DOWN*+DRAIN", "DOWN", {"DRAIN", "NOT_RESPONDING"}),
        ("DOWN+DRAIN+NOT_RESPONDING", "DOWN", {"DRAIN", "NOT_RESPONDING"}),
        ("MIXED+CLOUD+POWERING_UP", "MIXED", {"CLOUD", "POWERING_UP"}),
    ],
)
def test_every_spelling_of_a_node_state_is_understood(state: str, base: str, flags: set[str]) -> None:
    (node,) = parse_nodes(f"NodeName=n1 NodeAddr=10.0.0.1 Port=6818 State={state} Partitions=a,b Owner=N/A\n")
    assert (node.base_state, set(node.flags)) == (base, flags)
    assert node.partitions == ("a", "b")


def test_jobs_are_read_with_nodes_times_and_reservation() -> None:
    jobs = {job.job_id: job for job in parse_jobs(recorded("jobs"))}
    gang = jobs[1]
    assert (gang.user, gang.state, gang.nodes, gang.node_count) == ("nobody", "RUNNING", ("n4", "n5"), 2)
    assert (gang.batch, gang.requeue, gang.restart_count, gang.reason) == (True, True, 0, "")
    assert (gang.submit_at, gang.start_at, gang.end_at) == (1795264709, 1795264712, None)
    assert (jobs[2].reservation, jobs[2].excluded_nodes) == ("seats", ("n4", "n5"))
    assert (jobs[5].state, jobs[5].nodes, jobs[5].start_at, jobs[5].reason) == ("PENDING", (), None, "Resources")
    limited = job_line(1).replace("EndTime=Unknown", "EndTime=2026-11-21T18:38:32")
    assert parse_jobs(limited)[0].end_at == 1795264712 + 6 * 60 * 60


def test_text_of_users_is_not_taken_for_fields() -> None:
    gang = parse_jobs(recorded("jobs"))[0]
    assert gang.name == "a name = odd  Comment=x"
    assert gang.comment == "understudy note=a b, JobState=FAILED"
    assert gang.state == "RUNNING"


@pytest.mark.parametrize(
    ("more", "to"),
    [
        (" MailUser=alice+jobs@example.org MailType=END,REQUEUE", "alice+jobs@example.org"),
        (" MailUser=alice MailType=BEGIN,END,FAIL,REQUEUE,STAGE_OUT", "alice"),
        (" MailUser=alice@example.org MailType=END,TIME_LIMIT_80", ""),
        (" MailUser=alice@example.org MailType=FAIL Container=/images/x", "alice@example.org"),
        ("", ""),
    ],
)
def test_a_job_says_where_its_user_wants_mail_about_failures_and_requeues(more: str, to: str) -> None:
    assert job(f"{job_line(1).rstrip()}{more}").mail_to == to


def test_a_comment_with_a_line_break_makes_no_second_job() -> None:
    jobs = {job.job_id: job for job in parse_jobs(recorded("jobs"))}
    assert 77 not in jobs
    assert (jobs[2].name, jobs[2].user) == ("two\nlines", "games")


def test_a_job_whose_name_imitates_an_owner_is_left_out() -> None:
    assert 3 not in {job.job_id for job in parse_jobs(recorded("jobs"))}


def test_a_whole_imitated_record_is_noticed_by_its_id() -> None:
    forged = job_line(5).replace("StdErr=", f"Comment=x StdErr= \n{job_line(1)} StdErr=", 1)
    jobs = parse_jobs(forged + "\n" + job_line(1) + "\n")
    assert ambiguous(job.job_id for job in jobs) == {1}
    assert ambiguous(job.job_id for job in parse_jobs(recorded("jobs"))) == set()


def test_an_endless_number_in_a_users_text_does_not_keep_slurm_from_being_read() -> None:
    imitated = job_line(1).replace("JobId=1 ", f"JobId={'9' * 5000} ", 1)
    forged = job_line(5).replace("StdErr=", f"Comment=x StdErr= \n{imitated} StdErr=", 1)
    assert 1 in {job.job_id for job in parse_jobs(forged + "\n" + job_line(1) + "\n")}


KEYS_READ = sorted(set(re.findall(r"[A-Z][A-Za-z_/:]+(?==)", job_line(1))) | {"SegmentSize", "Reservation", "Extra"})
PLACES = ("JobName=", "MCS_label=", "Features=", "Network=", "Command=", "WorkDir=", "AdminComment=", "Comment=")
FORGED = ("y", "1.5", "-1", "n[1-", f"{'9' * 5000}", "9" * 30, "", "2026-99-99T00:00:00")


@pytest.mark.parametrize("place", PLACES)
def test_no_text_of_a_user_keeps_the_jobs_of_others_from_being_read(place: str) -> None:
    others = parse_jobs(job_line(5))
    found = re.search(rf"(?<= ){place}\S*", job_line(1))
    assert found is not None
    for key in KEYS_READ:
        for value in FORGED:
            forged = job_line(1).replace(found[0], f"{found[0]} {key}={value}", 1)
            jobs = parse_jobs(f"{forged}\n{job_line(5)}")
            assert [one for one in jobs if one.job_id == 5] == others
            for mine in (one for one in jobs if one.job_id == 1):
                plain = job(job_line(1))
                assert (mine.state, mine.nodes, mine.user_id) == (plain.state, plain.nodes, plain.user_id)
                assert (mine.restart_count, mine.submit_at) == (plain.restart_count, plain.submit_at)


def with_cluster_features(text: str) -> str:
    """Text of `sbatch --cluster-constraint`, which Slurm takes as it is."""
    return job_line(1).replace("DelayBoot=00:00:00 ", f"DelayBoot=00:00:00 ClusterFeatures={text} ")


@pytest.mark.parametrize("after", ["SegmentSize=8 ", "SegmentSize=8 SpreadSegments=Yes Switches=1@00:10:00 "])
def test_a_segment_is_read_where_slurm_prints_it(after: str) -> None:
    """After StdOut, or after the comment of a job without a script (src/scontrol/info_job.c of 25.05 to 26.05)."""
    line = job_line(1)
    of_batch = re.sub(r"(?<= )(StdOut=\S*) ", rf"\1 {after}", line, count=1)
    assert of_batch != line
    assert (job(of_batch).segment, job(of_batch).switches_max) == (8, 1 if "Switches" in after else 0)
    interactive = re.sub(r" StdErr=\S* StdIn=\S* StdOut=\S*", f" Comment=understudy {after}", line, count=1).rstrip()
    assert (job(interactive).segment, job(interactive).comment) == (8, "understudy")
    assert job(line).segment == 0


def test_a_segment_in_a_text_of_the_user_changes_no_other_job() -> None:
    forged = with_cluster_features("x SegmentSize=y SegmentSize=4 Switches=4@00:00:00")
    assert (job(forged).segment, job(forged).switches_max) == (0, 0)
    assert [one.segment for one in parse_jobs(f"{forged}\n{job_line(5)}")] == [0, 0]


@pytest.mark.parametrize(
    ("asked", "types"),
    [
        ("TresPerNode=gres:gpu:8 ", ()),  # as 22.05 prints it
        ("TresPerNode=gres:gpu:h100:8 ", ("h100",)),
        ("TresPerJob=gres/gpu:h100:16 ", ("h100",)),
        ("CpusPerTres=gres/gpu:4 TresPerNode=gres/gpu:a100:4,gres/gpu:h100:4,gres/nic:2 ", ("a100", "h100")),
        ("TresPerTask=cpu=4,gres/gpu:b200=1 ", ("b200",)),
    ],
)
def test_the_types_of_gpus_that_a_job_asks_for_are_read(asked: str, types: tuple[str, ...]) -> None:
    """Behind the user's texts: TresPerJob, TresPerNode, TresPerSocket and TresPerTask of src/scontrol/info_job.c."""
    line = re.sub(r"TresPerNode=\S* ", "", job_line(1))
    assert job(f"{line.rstrip()} {asked}").gpu_types == types
    assert job(with_cluster_features("x TresPerNode=gres:gpu:h100:8")).gpu_types == ()


@pytest.mark.parametrize("end", ["Command=x", "Network=x", "WorkDir=x", "AdminComment=x"])
def test_a_whole_part_of_slurms_own_in_a_users_text_is_not_believed(end: str) -> None:
    """Nor does a part that is cut short count as an unknown version of Slurm."""
    own_part = job_line(1).partition(" JobState=")[2].partition(" Network=")[0]
    own_part = own_part.replace("NodeList=n[4-5]", "NodeList=n[1-8]")
    forged = job_line(1).replace("MCS_label=N/A", f"MCS_label=x Priority=1 JobState={own_part} {end}")
    assert parse_jobs(forged) == []
    assert parse_jobs(job_line(1).replace("MCS_label=N/A", f"MCS_label=x {end}")) == []


def test_a_nodes_texts_are_not_taken_for_its_port_or_gpus() -> None:
    """Old versions print no port where it is the default."""
    texts = " ".join(f"{key}=see Port=mlx5_0 Gres=gpu:1 Partitions=x" for key in ("Reason", "Comment", "Extra"))
    (node,) = parse_nodes(f"NodeName=n1 NodeAddr=10.0.0.1 State=IDLE+DRAIN Weight=3 {texts}")
    assert (node.port, node.gres, node.partitions, node.weight) == (6818, "", (), 3)


@pytest.mark.parametrize("arch", ["x\nNodeName=n3 State=IDLE", "x Port=x", "x Weight=1r"])
def test_what_root_of_a_node_has_its_slurmd_report_hides_no_other_node(arch: str) -> None:
    """slurmctld takes architecture and operating system as they come, and scontrol prints them so."""
    printed = recorded("nodes").replace("Arch=x86_64", f"Arch={arch}", 1)
    names = {f"n{number}" for number in range(2, 9)}
    assert {node.name for node in parse_nodes(printed)} == names


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_nodes, "NodeName=n1 State=IDLE Port=x"),
        (parse_nodes, "NodeName=n1 State=IDLE Weight=1r"),
        (parse_reservations, "ReservationName= Nodes=n1"),
        (parse_topology, "SwitchName= Level=0 Nodes=n1"),
    ],
)
def test_what_no_slurm_prints_is_an_error_of_slurm(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(SlurmError, match="scontrol printed"):
        read(text)


def test_reservations_are_read_with_nodes_users_and_flags() -> None:
    spares, seats = parse_reservations(recorded("reservations"))
    assert (spares.name, spares.nodes, spares.users) == ("understudy_spares", ("n6", "n7", "n8"), ("root",))
    assert spares.flags == {"IGNORE_JOBS", "OVERLAP", "SPEC_NODES"}
    assert (seats.nodes, seats.users) == (("n1", "n3"), ("nobody", "games"))


def test_an_empty_cluster_has_no_jobs_and_no_reservations() -> None:
    assert parse_jobs("No jobs in the system\n") == []
    assert parse_reservations("No reservations in the system\n") == []
    assert parse_nodes("") == []


def test_fields_of_other_versions_are_passed_over() -> None:
    line = job_line(5).replace(" JobState=", " Container=(null) SLUID=s4TB JobState=").replace(" Power=", " Segment=4")
    assert job(line) == job(job_line(5))


def test_a_pending_job_shows_no_nodes_though_slurm_still_prints_the_old_ones() -> None:
    assert job(job_line(5).replace("NodeList= ", "NodeList=n[1-4] ")).nodes == ()


def test_a_missing_field_is_an_error_that_names_it() -> None:
    with pytest.raises(SlurmError, match="Restarts"):
        parse_jobs(job_line(1).replace(" Restarts=0", ""))
    with pytest.raises(SlurmError, match="SubmitTime"):
        parse_jobs(job_line(1).replace("SubmitTime=2026-11-21T12:38:29", "SubmitTime=Unknown"))
    with pytest.raises(SlurmError, match="State"):
        parse_nodes("NodeName=n1 NodeAddr=10.0.0.1\n")


def test_a_time_is_read_as_utc_and_no_time_as_none() -> None:
    assert epoch_seconds("1970-01-02T00:00:00") == 86_400
    assert epoch_seconds("Unknown") is None
    assert epoch_seconds("N/A") is None


@given(st.text(st.characters(exclude_characters="\0\r"), max_size=60))
def test_no_comment_moves_a_job_to_another_owner_or_node(comment: str) -> None:
    text = job_line(5).replace(" StdErr=", f" Comment={comment}  StdErr=", 1)
    plain = job(job_line(5))
    for found in parse_jobs(text):
        assert (found.job_id, found.user, found.state, found.nodes) == (5, "games", "PENDING", ())
        assert found.submit_at == plain.submit_at


def test_a_comment_that_looks_like_half_a_record_hides_no_other_job() -> None:
    text = (DATA / "jobs-22.05.txt").read_text()
    forged = text + "\nJobId=99 UserId=a(1) GroupId=b Command=c\n"
    assert [job.job_id for job in parse_jobs(forged)] == [job.job_id for job in parse_jobs(text)]


@pytest.mark.parametrize(
    "forgery",
    [
        "MCS_label=x JobState=RUNNING Restarts=0 SubmitTime=2026-01-01T00:00:00 NodeList=n[1-6] NumNodes=6 ",
        "QOS=x JobState=COMPLETED ",
        "ClusterFeatures=x\tNodeList=n[1-6] ",
        "MCS_label=x DelayBoot=00:00:00 Reservation=understudy_seats_4 ",
    ],
)
def test_text_of_a_user_between_slurms_own_fields_is_not_believed(forgery: str) -> None:
    record = job_line(5)
    (honest,) = parse_jobs(record)
    assert parse_jobs(record.replace("MCS_label=N/A ", forgery)) == []
    clumsy = record.replace("MCS_label=N/A ", "MCS_label=x Reservation=understudy_seats_4 ")
    assert parse_jobs(clumsy) == [honest]


def test_a_task_of_an_array_has_an_address_and_what_slurm_changes_as_a_whole_is_known() -> None:
    def read(identity: str) -> tuple[object, str]:
        (job,) = parse_jobs(job_line(5).replace("JobId=5", f"JobId=5{identity}", 1))
        return job.address, job.part_of

    assert read("") == (5, "")
    assert read(" ArrayJobId=1 ArrayTaskId=3") == (ArrayTask(1, 3), "")
    assert read(" ArrayJobId=5 ArrayTaskId=9 ArrayTaskThrottle=1") == (ArrayTask(5, 9), "")
    assert read(" ArrayJobId=5 ArrayTaskId=2-7,9%1") == (5, WAITING_TASKS)
    assert read(" HetJobId=1 HetJobOffset=1 HetJobIdSet=1-2") == (5, HETEROGENEOUS_JOB)


def test_a_node_of_a_tree_may_be_below_several_leaves_and_these_below_several_spines() -> None:
    units = parse_topology(recorded("topology-rails"))
    assert [unit.name for unit in units if "n2" in unit.nodes] == ["leaf1a", "leaf1b", "spine1", "spine2"]
    assert [unit.level for unit in units] == [0, 0, 0, 0, 1, 1]


def test_blocks_are_read_with_those_that_slurm_aggregates() -> None:
    units = parse_topology(recorded("topology-block", "24.11"))
    assert units[0] == TopologyUnit(UnitKind.BLOCK, "b1", ("n1", "n2"), size=2)
    assert units[3] == TopologyUnit(UnitKind.AGGREGATED, "b[1-2]", ("n1", "n2", "n3", "n4"), size=4)


def test_of_several_topologies_the_names_beside_the_default_are_read() -> None:
    assert parse_topology_names(recorded("topoconf", "26.05")) == ["nvl"]
    assert parse_topology_names("") == []


def test_a_ring_between_switches_is_left_out() -> None:
    assert parse_topology("RingName=r1 Nodes=n1 RingSize=8\nSwitchName=s1 Level=0 Nodes=n2\n") == (
        TopologyUnit(UnitKind.SWITCH, "s1", ("n2",)),
    )


@pytest.mark.parametrize(
    ("allotted", "ranks_max"),
    [
        ("NumCPUs=32 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=32,node=2,billing=32", 32),
        ("NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqTRES=cpu=2 AllocTRES=cpu=2,mem=1G,node=2,gres/gpu=16", 16),
        ("NumCPUs=384 NumTasks=2 CPUs/Task=1 TRES=cpu=384,node=2,billing=32,gres/gpu=16,gres/gpu:h100=16", 16),
        ("NumCPUs=50K NumTasks=2 CPUs/Task=1 TRES=cpu=51200,node=2", 51_200),
        ("NumCPUs=384 NumTasks=20 CPUs/Task=1 TRES=cpu=384,node=2,gres/gpu=16", 20),
    ],
)
def test_a_job_has_as_many_ranks_as_slurm_has_allotted_to_it(allotted: str, ranks_max: int) -> None:
    line = re.sub(r"NumCPUs=.*? TRES=\S+", allotted, job_line(5))
    assert job(line).ranks_max == ranks_max


@pytest.mark.parametrize("parse", [parse_nodes, parse_jobs])
@pytest.mark.parametrize("others", [True, False])
def test_an_unreadable_record_does_not_keep_what_was_printed(parse: Callable[[str], object], others: bool) -> None:
    kind, start = ("nodes", "NodeName=x Port=") if parse is parse_nodes else ("jobs", "JobId=9 UserId=x(1) GroupId=x")
    text = f"{start}9x Network=x\n" + recorded(kind) * others
    assert garbage_of(lambda: parse(text)) == 0


def test_a_node_may_have_an_ipv6_address_and_another_host_name() -> None:
    (node,) = parse_nodes((REPOSITORY / "tests/data/world/network/ipv6_nodes.txt").read_text())
    assert (node.name, node.address, node.port) == ("n1", "fd00:0:0::1", 6818)
