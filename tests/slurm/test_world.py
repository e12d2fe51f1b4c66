"""What Slurm prints at other sites: names of directory services, texts of people, states, holds and drains of its own.

The inputs lie in tests/data/world/slurm; the order of fields is that of Slurm's source (`printed`).
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests import REPOSITORY
from tests.slurm.printed import JOB_TEXTS, VERSIONS, job, node
from understudy_controlplane.config.action import Validation
from understudy_controlplane.fleet.custody import (
    SLURMS_REASONS,
    Custody,
    Holder,
    Proof,
    as_printed,
    custody_in,
    in_slurm,
    kept_down,
)
from understudy_controlplane.fleet.slurm import WAITING_TASKS, Service, SlurmJob, SlurmNode, TopologyUnit, UnitKind
from understudy_controlplane.hostlist import expand
from understudy_controlplane.slurm.cli import checked_user
from understudy_controlplane.slurm.parse import (
    epoch_seconds,
    parse_batch_host,
    parse_extra,
    parse_jobs,
    parse_nodes,
    parse_reservations,
    parse_topology,
    signed_by_slurm,
    slurm_user,
)
from understudy_controlplane.slurm.protocol import SlurmError

WORLD = REPOSITORY / "tests" / "data" / "world" / "slurm"
SIGNED_AT = epoch_seconds("2026-07-25T11:59:03")


def lines(name: str) -> list[str]:
    return [one for one in (WORLD / name).read_text(encoding="utf-8").splitlines() if not one.startswith("#")]


def read(printed: str) -> SlurmJob:
    (found,) = parse_jobs(printed)
    return found


def shown(**given: str) -> SlurmNode:
    (found,) = parse_nodes(node("24.11", **given))
    return found


@pytest.mark.parametrize("version", ["24.11", "26.05"])
def test_what_real_slurms_printed_of_users_of_a_directory_service_is_read(version: str) -> None:
    """Recorded on clusters with such users in /etc/passwd; the Prolog of n4 failed five times."""
    jobs = {one.job_id: one for one in parse_jobs((WORLD / f"jobs-{version}.txt").read_text())}
    assert {one.job_id: one.user for one in jobs.values()} == {
        1: "alice@corp.example.org",
        2: "CORP\\john smith",
        3: "svc-train$",
        4: "CORP+bob",
    }
    assert (jobs[1].state, jobs[1].reason) == ("REQUEUE_HOLD", "launch_failure_limit_exceeded_requeued_held")
    assert [one.job_id for one in jobs.values() if one.held_by_slurm] == [1]
    gang = jobs[2]
    assert (gang.name, gang.comment) == ("a name = odd  Comment=x", "understudy note=a b, JobState=FAILED")
    assert (gang.nodes, gang.reservation, gang.features) == (("n1", "n2"), "understudy_seats_2", "h100")
    assert (gang.segment, gang.mail_to) == (2 if version == "26.05" else 0, "alice@corp.example.org")
    assert (jobs[3].reason, jobs[3].held, jobs[4].part_of) == ("JobHeldUser", True, WAITING_TASKS)
    nodes = {one.name: one for one in parse_nodes((WORLD / f"nodes-{version}.txt").read_text())}
    reason = "was: Not responding [slurm@2026-01-01T00:00:00] [ticket 7] State=IDLE"
    assert (nodes["n3"].reason, nodes["n3"].reason_user) == (reason, "root")
    assert (nodes["n4"].reason, in_slurm(nodes["n4"]).holder) == ("Prolog error", Holder.SLURM)
    assert nodes["n1"].features == {"h100", "Fabric=ib"}


def test_the_reservation_of_a_user_of_a_directory_service_is_known_by_its_user() -> None:
    (seats,) = parse_reservations((WORLD / "reservations-26.05.txt").read_text())
    assert seats.made_for("CORP\\john smith")
    assert not seats.made_for("john")


USERS = lines("users.txt")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("user", USERS)
def test_a_user_of_a_directory_service_is_read_and_can_get_a_reservation(version: str, user: str) -> None:
    found = read(job(version, user=f"{user}(200512)", group="domain users@corp.example.org(200513)"))
    assert (found.user, found.user_id, found.name) == (user, 200512, "train")
    (drained,) = parse_nodes(node(version, state="IDLE+DRAIN", reason="board swap", user=user))
    assert (drained.reason, drained.reason_user, drained.reason_at) == ("board swap", user, SIGNED_AT)
    reserved = f"Nodes=n[1-2] Flags=IGNORE_JOBS TRES=cpu=2 Users={user} Groups=(null) Accounts=(null)"
    (reservation,) = parse_reservations(f"ReservationName=seats StartTime=2026-03-01T10:00:00 {reserved}")
    assert reservation.made_for(checked_user(user))


@pytest.mark.parametrize("user", ["-alice", "alice,bob", "a\nb", "a\x7f", "", " alice", "x Flags=MAINT"])
def test_what_slurm_would_read_as_other_users_or_as_a_field_is_no_user(user: str) -> None:
    with pytest.raises(SlurmError):
        checked_user(user)
    with pytest.raises(ValidationError):
        Validation(user=user)


@pytest.mark.parametrize(
    ("printed", "user_id", "name"), [("nobody", 1001, "1001"), ("nobody", 99, "nobody"), ("", 1001, "1001")]
)
def test_a_user_whom_this_host_does_not_know_is_named_by_number(printed: str, user_id: int, name: str) -> None:
    """Slurm 22.05 and 23.02 print "nobody" for all of them."""
    assert read(job("22.05", user=f"{printed}({user_id})")).user == name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", JOB_TEXTS)
def test_no_text_of_a_user_becomes_a_field(version: str, place: str) -> None:
    """A job is read as it is, or left out."""
    plain = read(job(version))
    for forged in (
        "Reservation=understudy_seats_4 OverSubscribe=NO",
        "NodeList=n[1-8] BatchHost=n8",
        "UserId=root(0) GroupId=root(0)",
        "JobState=COMPLETED Reason=None",
        "DelayBoot=00:00:00 Reservation=understudy_seats_4 OverSubscribe=NO Contiguous=0 Network=",
        "SubmitTime=2020-01-01T00:00:00 Restarts=0",
    ):
        for text in (forged, f"x {forged}", f"x\n {forged}"):
            printed = job(version, True, **{"comment": "understudy", place: text})
            for found in parse_jobs(printed):
                assert (found.user_id, found.state, found.nodes) == (plain.user_id, plain.state, plain.nodes)
                assert (found.reservation, found.submit_at, found.restart_count) == ("", plain.submit_at, 6)
                assert parse_batch_host(printed) == "n1"


KEYS = ["JobState=", "Reservation=", "OverSubscribe=NO", "NodeList=n9", "Comment=", "Extra=", "[root@", "UserId=", "="]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*KEYS, "x", " ", "\n", "]"]), max_size=9), st.sampled_from(JOB_TEXTS))
def test_no_text_moves_a_job(pieces: list[str], place: str) -> None:
    for version in ("22.05", "24.11", "26.05"):
        for found in parse_jobs(job(version, True, **{place: "".join(pieces)})):
            assert (found.job_id, found.user, found.state, found.nodes) == (4711, "alice", "RUNNING", ("n1", "n2"))
            # What ends the text of --cluster-constraint looks as the field does: a user lies about the own job alone.
            assert found.reservation == "" or place == "cluster_features"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_slurm_prints_between_the_fields_hides_none(version: str) -> None:
    rare = {
        "failed_node": "n3",
        "wckey": "*",
        "sched_nodes": "n[3-4]",
        "batch_features": "h100",
        "stepmgr": "Yes",
        "cluster_features": "gpu",
        "prefer": "h100&nvme",
        "reservation": "understudy_seats_4",
        "features": "[rack1|rack2]",
        "extra": "Foo=bar baz",
        "switches": "1@00:10:00",
        "kill_on_invalid": "1",
        "mail": "alice@corp.example.org MailType=FAIL",
        "container": "/images/x",
    }
    found = read(job(version, True, **rare))
    assert (found.reservation, found.features, found.comment) == ("understudy_seats_4", "[rack1|rack2]", "understudy")
    assert (found.nodes, found.ranks_max, found.mail_to) == (("n1", "n2"), 16, "alice@corp.example.org")
    assert parse_batch_host(job(version, True, **rare)) == "n1"
    assert parse_extra(job(version, True, **rare)) == ("" if version == "22.05" else "Foo=bar baz")
    for last in ("kill_on_invalid", "container"):  # right behind the comment of a job without a script
        assert read(job(version, False, **{last: "1"})).comment == "understudy"


@pytest.mark.parametrize("version", ["25.05", "25.11", "26.05"])
def test_a_segment_is_kept(version: str) -> None:
    assert read(job(version, segment="8", tres_per_node="gres/gpu:4")).segment == 8
    assert read(job(version)).segment == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("reason", "read_as"),
    [
        ("board swap", "board swap"),
        ("was: Not responding [slurm@2026-01-01T00:00:00]", "was: Not responding [slurm@2026-01-01T00:00:00]"),
        ("see Comment=x [ticket 7] Extra=y", "see Comment=x [ticket 7] Extra=y"),
        ("two\nlines [bob@2026-01-01T00:00:00]", "two"),
    ],
)
def test_a_reason_ends_where_slurm_signs_it(version: str, reason: str, read_as: str) -> None:
    for more in ({}, {"comment": "fixed [bob@2026-01-01T00:00:00]"}, {"extra": "Reason=x [bob@2026-01-01T00:00:00]"}):
        (found,) = parse_nodes(node(version, state="IDLE+DRAIN", reason=reason, user="root", **more))
        assert (found.reason, found.reason_user, found.reason_at) == (read_as, "root", SIGNED_AT)
        assert (found.base_state, set(found.flags)) == ("IDLE", {"DRAIN"})


LONG = {"keys": "x Reason=" * 30_000, "blanks": " " * 30_000 + "x", "users": " [u@" * 30_000, "words": " A" * 30_000}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
@pytest.mark.parametrize("place", ["comment", "extra"])
def test_the_time_of_reading_grows_with_a_text_and_not_with_its_square(place: str, text: str) -> None:
    """The square would take minutes; the reading takes milliseconds."""
    assert [one.name for one in parse_nodes(node("24.11", state="IDLE", **{place: text}))] == ["n1"]
    assert read(job("24.11", True, **{place: text})).job_id == 4711


def test_features_with_equals_signs_are_features() -> None:
    assert shown(features="h100,Fabric=ib,ofed=24.10").features == {"h100", "Fabric=ib", "ofed=24.10"}


DRAINS = [tuple(one.partition(": ")[::2]) for one in lines("drain-reasons.txt")]


@pytest.mark.parametrize(("where", "reason"), DRAINS)
@pytest.mark.parametrize("user", ["slurm", "root"])
def test_a_reason_of_slurms_own_is_slurms_and_the_same_words_of_a_person_are_not(
    where: str, reason: str, user: str
) -> None:
    proof = Proof(where.rpartition(" ")[2])
    drained = shown(state="IDLE+DRAIN", reason=reason, user=user)
    assert SIGNED_AT is not None
    assert in_slurm(drained) == Custody(Holder.SLURM, proof, SIGNED_AT)
    assert custody_in(drained, None).by_others
    alice = shown(state="IDLE+DRAIN", reason=reason, user="alice")
    assert in_slurm(alice) == Custody(Holder.ADMINISTRATOR, Proof.REASON, SIGNED_AT)
    failing = shown(state="IDLE+FAIL", reason=reason, user=user)
    assert in_slurm(failing) == Custody(Holder.ADMINISTRATOR, Proof.FAIL, SIGNED_AT)
    down = shown(state="DOWN", reason=reason, user=user)
    assert in_slurm(down) == Custody(Holder.FREE if proof is Proof.SILENCE else Holder.SLURM, proof, SIGNED_AT)
    assert kept_down(down) == (proof is not Proof.REASON)
    assert not kept_down(shown(state="DOWN", reason=reason, user="alice"))


def test_every_reason_of_the_table_is_in_slurms_source() -> None:
    """And whole: only so it is Slurm's where root has signed it."""
    assert [form for form in SLURMS_REASONS if not any(as_printed(form).match(one) for _, one in DRAINS)] == []
    assert {one.split()[0] for one, _ in DRAINS} | {one.split()[1] for one, _ in DRAINS} <= set(VERSIONS)


BOB = "is out, do not return before Friday (Bob)"


@pytest.mark.parametrize(("_", "reason"), DRAINS)
@pytest.mark.parametrize("words", [f": DIMM B3 {BOB}", f", it {BOB}", f" (it {BOB})", f" : {BOB}", f". It {BOB}"])
def test_a_person_who_goes_on_after_words_of_slurms_has_drained_the_node(_: str, reason: str, words: str) -> None:
    """The person is root, by whom slurmd signs as well. Slurm adds to a person's reason, too."""
    for state in ("IDLE+DRAIN", "DOWN"):
        assert in_slurm(shown(state=state, reason=reason + words, user="root")).holder is Holder.ADMINISTRATOR
        added = shown(state=state, reason=f"{reason}{words} : Not responding", user="slurm")
        assert in_slurm(added).holder is Holder.ADMINISTRATOR
    assert not kept_down(shown(state="DOWN", reason=reason + words, user="root"))


def test_words_that_a_later_slurm_may_add_to_its_own_reason_are_slurms() -> None:
    later = shown(state="IDLE+DRAIN", reason="Kill task failed (JobId=7 StepId=0 Cgroup=x)", user="slurm")
    assert in_slurm(later).holder is Holder.SLURM


@pytest.mark.parametrize("signed", ["hpc-slurm", "64030"])
def test_slurm_is_known_by_the_name_that_the_site_gives_slurmuser(signed: str) -> None:
    """The host of scontrol may not know the name: then Slurm prints the number."""
    drained = shown(state="IDLE+DRAIN", reason="Prolog error", user=signed)
    (found,) = signed_by_slurm([drained], slurm_user({"SlurmUser": "hpc-slurm(64030)"}))
    assert in_slurm(found).holder is Holder.SLURM
    (other,) = signed_by_slurm([drained], slurm_user({"SlurmUser": "slurm(64030)"} if signed != "64030" else {}))
    assert in_slurm(other).holder is Holder.ADMINISTRATOR


@pytest.mark.parametrize(
    ("file", "holder"), [("gres-of-a-site.txt", Holder.SLURM), ("drainer.txt", Holder.ADMINISTRATOR)]
)
def test_nodes_of_public_reports_are_read(file: str, holder: Holder) -> None:
    """Slurm drains by itself; so does another program of the site, whose drain is respected."""
    (found,) = parse_nodes((WORLD / file).read_text())
    assert (found.service, in_slurm(found).holder) == (Service.DRAINING, holder)
    assert found.reason_user
    assert found.reason_at > 0


@pytest.mark.parametrize(
    ("state", "service"),
    [
        ("IDLE", Service.USABLE),
        ("IDLE+EXTERNAL", Service.AWAY),
        ("IDLE+DRAIN+INVALID_REG", Service.DRAINING),
        ("IDLE+INVALID_REG", Service.DRAINING),
        ("DOWN+NOT_RESPONDING", Service.SILENT),
        ("DOWN+INVALID_REG", Service.DOWN),
        ("ERROR", Service.DOWN),
        ("UNKNOWN+NOT_RESPONDING", Service.SILENT),
        ("IDLE+CLOUD+POWERED_DOWN", Service.AWAY),
        ("DOWN+CLOUD+NOT_RESPONDING+POWERING_DOWN", Service.AWAY),
        ("FUTURE", Service.AWAY),
    ],
)
def test_a_node_is_usable_only_where_slurm_would_start_a_job(state: str, service: Service) -> None:
    assert shown(state=state).service is service


HELD = [one.split(" ", 2) for one in lines("held-jobs.txt")]


@pytest.mark.parametrize(("state", "by", "reason"), HELD)
def test_a_hold_is_a_persons_or_slurms(state: str, by: str, reason: str) -> None:
    found = read(job("25.11", state=state, reason=reason, priority="0"))
    assert found.held_by_slurm == (by == "slurm")
    assert not read(job("25.11", state=state, reason=reason, priority="7")).held_by_slurm
    assert not read(job("25.11", state="RUNNING", reason=reason, priority="0")).held_by_slurm


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "JobHeldUser"])
@pytest.mark.parametrize("version", ["25.11", "26.05"])
def test_a_job_for_which_slurm_could_make_no_credential_is_held_by_slurm(version: str, reason: str) -> None:
    """Its user may hold it afterwards. An administrator's later hold looks the same."""
    comment = "slurm_cred_create failure, holding job."
    held = job(version, state="PENDING", reason=reason, priority="0", system_comment=comment)
    assert read(held).held_by_slurm == (reason == "JobHeldAdmin")
    noted = job(version, state="PENDING", reason=reason, priority="0", system_comment=f"{comment}x")
    assert not read(noted).held_by_slurm


@pytest.mark.parametrize("line", lines("host-lists.txt"))
def test_host_lists_of_sites_are_read(line: str) -> None:
    written, *names = line.split()
    assert list(expand(written)) == names


def test_blocks_of_names_with_several_numbers_are_read() -> None:
    units = parse_topology((WORLD / "topology.txt").read_text())
    assert units[0] == TopologyUnit(UnitKind.BLOCK, "b1", ("hpc-9", "hpc-13", "hpc-17", "hpc-21"), size=16)
    assert units[1].nodes == units[2].nodes == ("g3-129-057", "g3-129-059", "g3-129-063")


def test_tasks_of_an_array_with_a_limit_are_read() -> None:
    found = read(job("22.05", array="ArrayJobId=80520 ArrayTaskId=31-33,71-74%2 ArrayTaskThrottle=2 "))
    assert (found.job_id, found.not_alone != "", found.name) == (4711, True, "train")


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ("Licenses", True),
        ("QOSGrpNodeLimit", True),
        ("QOSMaxGRESPerUser", True),
        ("MaxGRESPerAccount", True),
        ("AssocGrpGRES", True),
        ("AssocMaxJobsLimit", True),
        ("PartitionDown", True),
        ("QOSMaxNodePerJobLimit", False),
        ("AssocMaxGRESPerJob", False),
        ("AssocMaxGRESPerNode", False),
        ("QOSMaxCpuPerNode", False),
        ("QOSMinGRES", False),
        ("QOSMinCpuNotSatisfied", False),
        ("QOSNotAllowed", False),
        ("InvalidAccount", False),
        ("PartitionTimeLimit", False),
    ],
)
def test_limits_of_accounts_and_qos_and_licences_pass_unless_they_are_the_jobs_own(reason: str, passes: bool) -> None:
    """Names of job_state_reason.c, 22.05 to 26.05: those that pass keep a gang's seats, the others give them back."""
    assert read(job("24.11", state="PENDING", reason=reason)).waits_for_what_passes is passes
