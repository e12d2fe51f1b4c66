"""Failures of the command line are classified, and no text of users becomes an option.

Played against a small program in scontrol's place that says what the test wants.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import PYTHON_PATH
from tests.bench.slurm_text import jobs_text
from understudy_controlplane.fleet.slurm import JobRequest
from understudy_controlplane.slurm.cli import COMMANDS_MAX, CommandLineGateway
from understudy_controlplane.slurm.parse import parse_batch_host
from understudy_controlplane.slurm.protocol import SlurmError, SlurmUnavailable, loses_dead_gangs

pytestmark = pytest.mark.integration

PROGRAM = """#!{python}
import json, os, sys, time
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
time.sleep({seconds})
print({out!r})
print({err!r}, file=sys.stderr)
sys.exit({code})
"""

Make = Callable[..., CommandLineGateway]

OWNER = "JobName=x UserId=alice(1001) GroupId=ml(2001) MCS_label=N/A"


class Calls:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> list[tuple[list[str], dict[str, str]]]:
        return [tuple(json.loads(line)) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.fixture
def scontrol(tmp_path: Path, calls: Calls) -> Make:
    def make(
        out: str = "", err: str = "", code: int = 0, seconds: float = 0, timeout: float = 10, ids: str = ""
    ) -> CommandLineGateway:
        program = tmp_path / "scontrol"
        squeue = tmp_path / "squeue"
        squeue.write_text(f"#!/bin/sh\necho '{ids}'\n")
        squeue.chmod(0o755)
        output = {"out": out, "err": err, "code": code, "seconds": seconds}
        program.write_text(PROGRAM.format(python=sys.executable, calls=str(calls.path), **output))
        program.chmod(0o755)
        return CommandLineGateway(str(program), {"PATH": "/usr/bin:/bin", "SLURM_CONF": "/somewhere"}, timeout)

    return make


def test_times_are_asked_for_and_given_in_utc(scontrol: Make, calls: Calls) -> None:
    assert scontrol(out="No jobs in the system").jobs() == []
    ((arguments, environment),) = calls()
    assert arguments == ["--all", "show", "jobs", "--oneliner"]
    assert (environment["TZ"], environment["LC_ALL"]) == ("UTC", "C")
    assert environment["SLURM_TIME_FORMAT"] == "standard"
    assert environment["SLURM_CONF"] == "/somewhere"


def test_filters_that_a_user_set_do_not_apply_to_the_control_plane(scontrol: Make, calls: Calls) -> None:
    gateway = CommandLineGateway(
        scontrol()._scontrol, {"PATH": "/usr/bin:/bin", "SQUEUE_USERS": "root", "SLURM_CLUSTERS": "other"}
    )
    gateway.nodes()
    ((_, environment),) = calls()
    assert not {"SQUEUE_USERS", "SLURM_CLUSTERS"} & environment.keys()


def test_jobs_of_other_clusters_of_a_federation_are_not_shown(scontrol: Make, calls: Calls) -> None:
    """FederationParameters=fed_display would show them."""
    gateway = CommandLineGateway(scontrol()._scontrol, {"PATH": "/usr/bin:/bin", "SCONTROL_FEDERATION": "1"})
    gateway.nodes()
    ((_, environment),) = calls()
    assert (environment["SCONTROL_LOCAL"], environment["SQUEUE_LOCAL"]) == ("1", "1")
    assert "SCONTROL_FEDERATION" not in environment


def test_jobs_that_squeue_knows_none_of_are_an_error_and_not_an_idle_cluster(scontrol: Make) -> None:
    printed = (Path(__file__).parent / "data" / "jobs-22.05.txt").read_text()
    with pytest.raises(SlurmError, match="squeue knows none of them"):
        scontrol(out=printed, ids="").jobs()


@pytest.mark.parametrize(
    "printed",
    [
        "slurm_load_node error: Unable to contact slurm controller (connect failure)",
        "slurm_load_node error: Socket timed out on send/recv operation",
        "Unexpected message received for job 1",
    ],
)
def test_a_controller_that_does_not_answer_is_unavailable_not_wrong(scontrol: Make, printed: str) -> None:
    with pytest.raises(SlurmUnavailable, match=printed[:20]):
        scontrol(err=printed, code=1).nodes()


def test_a_command_that_hangs_is_given_up(scontrol: Make) -> None:
    with pytest.raises(SlurmUnavailable, match=r"requeue incomplete 7.*0.2 s"):
        scontrol(seconds=30, timeout=0.2).requeue_job(7)


def test_a_refusal_says_what_was_run_how_it_ended_and_what_it_printed(scontrol: Make) -> None:
    with pytest.raises(SlurmError, match=r"requeue incomplete 7` failed with exit code 3: Job is pending") as caught:
        scontrol(err="Job is pending execution for job 7", code=3).requeue_job(7)
    assert not isinstance(caught.value, SlurmUnavailable)


def test_a_missing_scontrol_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SlurmError, match="install Slurm's client commands"):
        CommandLineGateway("/nowhere/scontrol").nodes()


@pytest.mark.parametrize("name", ["--help", "-n1", "n1,n2", "n1 State=DOWN", "", "n[1-3]", "n1\n", "a=b"])
def test_what_is_no_name_never_reaches_a_command(scontrol: Make, calls: Calls, name: str) -> None:
    slurm = scontrol()
    attempts: list[Callable[[], None]] = [
        lambda: slurm.drain_node(name, "reason"),
        lambda: slurm.resume_node(name),
        lambda: slurm.create_reservation(name, ["n1"], "root", 5),
        lambda: slurm.create_reservation("pool", [name], "root", 5),
        lambda: slurm.create_reservation("pool", ["n1"], name, 5),
        lambda: slurm.delete_reservation(name),
    ]
    for attempt in attempts:
        with pytest.raises(SlurmError, match="is no valid name"):
            attempt()
    assert calls() == []


def test_a_reason_is_one_argument_on_one_line(scontrol: Make, calls: Calls) -> None:
    scontrol().down_nodes(["n1"], "--now\n State=RESUME; $(reboot)")
    assert calls()[0][0] == ["update", "NodeName=n1", "State=DOWN", "Reason=--now State=RESUME; $(reboot)"]


def test_a_job_of_the_control_plane_waits_for_no_login_shell_and_gets_no_secret(calls: Calls, tmp_path: Path) -> None:
    """slurmd with --export=NONE runs `su - root` before the script: if root's profile hangs, so does the job."""
    program = tmp_path / "sbatch"
    program.write_text(PROGRAM.format(python=sys.executable, calls=str(calls.path), out="7", err="", code=0, seconds=0))
    program.chmod(0o755)
    wanted = {"PATH": "/usr/bin:/bin", "SLURM_CONF": "/somewhere"}
    environment = wanted | {"PGPASSWORD": "geheim", "PATH_OF_KEY": "/k", "SBATCH_EXPORT": "NONE"}
    CommandLineGateway(str(tmp_path / "scontrol"), environment).submit_job(
        JobRequest("understudy-x", "n1", "understudy", "train", "root", "", "true", 5, "/dev/null")
    )
    ((arguments, given),) = calls()
    assert "--export=ALL" in arguments
    assert given.items() >= wanted.items()
    assert not {"PGPASSWORD", "PATH_OF_KEY", "SBATCH_EXPORT"} & given.keys()


class Fleet:
    """Answers as scontrol does: the nodes named, each once, with all that stands in their records."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.records = {f"n{at}": f"NodeName=n{at} Arch=x86_64 State=IDLE Partitions=train" for at in range(count)}
        (folder / "scontrol").write_text(
            f"""#!{sys.executable}
import json, sys
from understudy_controlplane.hostlist import expand
with open("{folder}/calls", "a") as calls:
    calls.write(sys.argv[3] + " ")
records = json.load(open("{folder}/records"))
asked = expand(sys.argv[5]) if sys.argv[3] == "node" else list(records)
if sys.argv[3] == "partition":
    print("PartitionName=train Nodes=" + ",".join(set(records) - {{"login"}}), "State=UP")
else:
    print("\\n".join(records.get(name, f"Node {{name}} not found") for name in asked))
sys.exit(not set(asked) <= set(records))
"""
        )
        (folder / "scontrol").chmod(0o755)
        self.gateway = CommandLineGateway(str(folder / "scontrol"), {"PYTHONPATH": PYTHON_PATH})

    def imitate(self, by: str, *names: str) -> None:
        """Root of a node chooses its architecture, which slurmctld takes, and scontrol prints, as it comes."""
        forged = "".join(f"\nNodeName={name} State=DOWN*" for name in names)
        self.records[by] = self.records[by].replace("x86_64", f"x State=MIXED Reason=x{forged}")

    def read(self) -> tuple[dict[str, str], int]:
        """State of each node, and how many commands it took."""
        (self.folder / "records").write_text(json.dumps(self.records))
        (self.folder / "calls").write_text("")
        nodes = {node.name: node.base_state for node in self.gateway.nodes()}
        return nodes, len((self.folder / "calls").read_text().split())


def test_imitated_nodes_are_asked_for_by_name_however_many_they_are(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 100)
    truth = dict.fromkeys(fleet.records, "IDLE") | {"n50": "MIXED"}
    fleet.imitate("n50", *(name for name in fleet.records if name != "n50"))
    assert fleet.read() == (truth, 3)


def test_nodes_that_slurm_does_not_have_are_dropped_and_those_of_no_partition_are_not(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 3)
    fleet.records["login"] = "NodeName=login Arch=x86_64 State=IDLE"
    truth = dict.fromkeys(fleet.records, "IDLE")
    assert fleet.read() == (truth, 3)
    assert fleet.read() == (truth, 1)
    fleet.imitate("n1", *(f"a{at}" for at in range(1000)), "b" * 200_000, "c d", "n[1-999999999]")
    assert fleet.read() == (truth | {"n1": "MIXED"}, 4)


def test_one_that_imitates_itself_as_well_is_parted_from_the_others_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 100)
    truth = dict.fromkeys(fleet.records, "IDLE") | {"n50": "MIXED"}
    no_nodes = [f"x{at}" for at in range(100)]
    fleet.imitate("n50", *fleet.records, *no_nodes, *no_nodes)
    nodes, commands = fleet.read()
    assert nodes == truth
    assert 10 < commands < 20
    assert fleet.read() == (truth, 5)


def test_root_of_many_nodes_makes_no_flood_of_commands_and_leaves_out_no_other(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 300)
    for at in range(100, 180):
        fleet.imitate(f"n{at}", *(f"n{one}" for one in range(100, 200)))
    nodes, commands = fleet.read()
    assert commands <= COMMANDS_MAX + 2
    assert [nodes.get(f"n{at}") for at in (*range(100), *range(200, 300))] == ["IDLE"] * 200
    assert all(nodes.get(f"n{at}", "IDLE") == "IDLE" for at in range(180, 200))


def test_an_imitated_job_is_asked_for_by_its_id(scontrol: Make, calls: Calls) -> None:
    lines = (Path(__file__).parent / "data" / "jobs-22.05.txt").read_text().split("\n")
    line = next(line for line in lines if line.startswith("JobId=5 "))
    jobs = scontrol(out=f"{line}\n{line.replace('PENDING', 'FAILED', 1)}", ids="5").jobs()
    assert [(job.job_id, job.state) for job in jobs] == [(5, "PENDING")]
    assert [arguments for arguments, _ in calls()][1] == ["--all", "show", "job", "--oneliner", "5"]


def test_squeue_is_asked_when_a_job_is_new_or_runs_again_after_its_end(scontrol: Make, tmp_path: Path) -> None:
    def reads(text: str) -> bool:
        """True if squeue is asked."""
        (tmp_path / "printed").write_text(text)
        (tmp_path / "squeue").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\necho 1 2\n")
        gateway.jobs()
        asked = (tmp_path / "asked").exists()
        (tmp_path / "asked").unlink(missing_ok=True)
        return asked

    gateway = scontrol()
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat {tmp_path}/printed\n")
    one, two = jobs_text(1), jobs_text(2)
    ended = two.replace("JobState=RUNNING", "JobState=COMPLETED")
    assert [reads(text) for text in (one, one, two, two, ended, ended, two, two)] == [
        *(True, False, True, False, False, False, True, False)
    ]


def test_a_job_that_squeue_does_not_name_is_somebodys_text(scontrol: Make) -> None:
    lines = (Path(__file__).parent / "data" / "jobs-22.05.txt").read_text().split("\n")
    line = next(line for line in lines if line.startswith("JobId=5 "))
    phantom = line.replace("JobId=5 ", "JobId=99 ")
    assert [job.job_id for job in scontrol(out=f"{line}\n{phantom}", ids="5").jobs()] == [5]


@pytest.mark.parametrize(
    ("version", "loses"),
    [
        ("22.05.8", True),
        ("23.02.8", True),
        ("23.11.10", True),
        ("23.11.11", False),
        ("24.05.5", True),
        ("24.05.6", False),
        ("24.11.0-0rc1", True),
        ("24.11.5", False),
        ("25.05.0", False),
        ("26.05.5", False),
    ],
)
def test_a_gang_is_shrunk_only_where_slurm_would_lose_it(
    scontrol: Make, calls: Calls, version: str, loses: bool
) -> None:
    assert loses_dead_gangs({"SLURM_VERSION": version}) is loses
    printed = f"ClusterName = c\nSLURM_VERSION = {version}\nJobId=7 {OWNER} NodeList=n[1-3] BatchHost=n2 NumNodes=3"
    scontrol(printed).keep_batch_host(7)
    updates = [arguments for arguments, _ in calls() if arguments[0] == "update"]
    assert updates == [["update", "JobId=7", "NodeList=n2"]] * loses


def test_a_job_that_does_not_run_has_no_batch_host() -> None:
    with pytest.raises(SlurmError, match="the job does not run"):
        parse_batch_host(f"JobId=7 {OWNER} JobState=PENDING NodeList= NumNodes=3")
