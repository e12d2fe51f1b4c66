"""The launcher with real seats and ranks beside this process: what cannot be had on a cluster, or is quicker here."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import PYTHON_PATH, REPOSITORY
from tests.launch.local import LocalGang
from tests.testbed.processes import is_running, read_process
from understudy_agent import rank_messages
from understudy_launcher.hub import STRANGERS_MAX
from understudy_launcher.open_files import needed
from understudy_wire.launcher import EarlierAllocations, LauncherAnswer, LauncherOrders

pytestmark = pytest.mark.integration

THREE = ["--nodes", "3"]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[LocalGang]:
    started = LocalGang(tmp_path)
    yield started
    started.close()


def test_a_gang_runs_and_moves_by_ipv6_alone(gang: LocalGang) -> None:
    text = (REPOSITORY / "tests/data/world/network/ipv6_step.env").read_text()
    given = dict(line.split("=") for line in text.splitlines())
    comm_host = given["SLURM_SRUN_COMM_HOST"]
    gang.start(THREE, SLURM_LAUNCH_NODE_IPADDR=given["SLURM_LAUNCH_NODE_IPADDR"], SLURM_SRUN_COMM_HOST=comm_host)
    gang.wait_for_launch(0, 3)
    gang.condemn("n2")
    gang.wait_for_launch(1, 3)
    assert {one["MASTER_ADDR"] for launch in (0, 1) for one in gang.ranks(launch)} == {"::1"}
    assert [one["master"].rpartition(":")[0] for one in gang.events("launch")] == ["[::1]", "[::1]"]


# -- ranks that are slow to die --------------------------------------------------------------------------------------


def test_a_node_whose_ranks_outlive_sigkill_is_not_used_again(gang: LocalGang) -> None:
    """Its seat is well, and would be killed by Slurm's SIGKILL without a trace of what it leaves behind."""
    gang.stick("n3")
    gang.start([*THREE, "--kill-seconds", "1"])
    gang.wait_for_launch(0, 3)
    gang.condemn("n2")
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n4", "n5"]
    (decision,) = gang.events("decision")
    assert "outlived SIGKILL" in decision["blamed"]["n3"]
    assert decision["ending_seconds"] > 1


def test_a_node_whose_ranks_die_slowly_is_used_again(gang: LocalGang) -> None:
    gang.stick("n3")
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    gang.condemn("n2")
    gang.wait_for(lambda: gang.events("fault"), 60, "the verdict is heard")
    time.sleep(1.0)
    gang.unstick("n3")
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n4", "n3"]


def test_most_of_the_gang_slow_to_die_is_waited_for(gang: LocalGang) -> None:
    gang.stick("n1", "n2", "n3")
    gang.start([*THREE, "--kill-seconds", "0.5"])
    gang.wait_for_launch(0, 3)
    gang.condemn("n2")
    gang.wait_for(lambda: gang.events("slow_to_die"), 60, "it is reported")
    time.sleep(0.7)
    gang.unstick("n1")
    time.sleep(0.2)
    gang.unstick("n3")
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n4", "n3"]


def test_ranks_of_a_condemned_node_that_answers_are_waited_for(gang: LocalGang) -> None:
    gang.stick("n1")
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    gang.condemn("n1")
    gang.wait_for(lambda: gang.events("fault"), 60, "the verdict is heard")
    time.sleep(0.7)
    assert len(gang.events("launch")) == 1
    gang.unstick("n1")
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n4", "n2", "n3"]
    assert gang.events("decision")[0]["ending_seconds"] > 0.7


def test_a_seat_that_says_nothing_is_ended_through_slurm(gang: LocalGang) -> None:
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    os.kill(gang.seat("n3"), signal.SIGSTOP)
    gang.condemn("n2")
    gang.wait_for_launch(1, 3)
    first, spare, last = gang.nodes(1)
    assert (first, last) == ("n1", "n3")
    assert spare in {"n4", "n5"}, "Slurm ends both of them with the step, either first"
    assert not gang.events("spare_bad")
    assert gang.events("decision")[0]["ending_seconds"] < 15


def test_a_step_that_is_ended_before_there_are_standbys_is_no_spares_fault(gang: LocalGang) -> None:
    gang.start([*THREE, "--kill-seconds", "1"])
    gang.wait_for_launch(0, 3)
    subprocess.run(
        [gang.home / "bin" / "scancel", "--signal=KILL", "1.0"],
        env={"HOME": str(gang.home), "PYTHONPATH": PYTHON_PATH},
        check=True,
    )
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n2", "n3"]
    assert gang.rows() == ["L150"]
    assert not gang.events("spare_bad")


def test_a_node_that_dies_before_its_standby_is_there_holds_up_nothing(gang: LocalGang) -> None:
    """Slurm may end the whole step of a seat that cannot start: the next launch is in another one."""
    gang.start([*THREE, "--rearm-seconds", "1"])
    gang.wait_for_launch(0, 3)
    gang.mute("n2")
    gang.wait_for_standbys(4)
    os.kill(gang.seat("n2"), signal.SIGKILL)
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n4", "n3"]
    assert not gang.events("barred")
    assert gang.events("launch")[1]["since_fault_seconds"] < 15, "it waited for a seat that cannot come"


def test_standbys_whose_nodes_are_watched_rest_until_they_are_the_gang(gang: LocalGang) -> None:
    gang.start([*THREE, "--rearm-seconds", "0", "--silence-seconds", "2"])
    gang.wait_for_launch(0, 3)
    gang.wait_for_standbys(5)
    begun = time.monotonic()
    gang.wait_for(lambda: time.monotonic() - begun > 4, 10, "longer than a seat may be silent")
    os.kill(gang.seat("n2"), signal.SIGKILL)
    gang.wait_for_launch(1, 3)
    assert not gang.events("silent")
    assert [one["bad"] for one in gang.events("fault")] == [{"n2": gang.events("fault")[0]["bad"]["n2"]}]
    last = gang.nodes(1)[2]
    os.kill(gang.seat(last, 1), signal.SIGSTOP)
    gang.wait_for_launch(2, 3)
    assert "no message from its seat" in gang.events("fault")[1]["bad"][last]
    gang.finish()
    assert gang.exit_code() == 0


# -- going on in the same process ------------------------------------------------------------------------------------

HANGS = """
import json, os, time
from pathlib import Path
from understudy.restart import restartable

def train():
    launch, rank = int(os.environ["UNDERSTUDY_LAUNCH"]), os.environ["RANK"]
    home = Path(os.environ["HOME"])
    with (home / "ranks").open("a") as file:
        line = {name: os.environ[name] for name in ("RANK", "UNDERSTUDY_LAUNCH", "SLURMD_NODENAME")}
        file.write(json.dumps({**line, "pid": os.getpid()}) + "\\n")
    step = 100 * launch
    while not (home / "finish").exists():
        step += launch > 0 or step < 3
        if rank == "0":
            (home / "steps").write_text(str(step))
        time.sleep(0.3)

restartable(train)
"""


def test_a_gang_that_hangs_is_started_in_new_processes_at_once(gang: LocalGang) -> None:
    script = gang.home / "hangs.py"
    script.write_text(HANGS)
    options = ["--in-process", "--progress-file", "steps", "--hang-seconds", "1.5"]
    gang.start([*THREE, *options], [str(gang.python), str(script)], nodes=4)
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n2", "n3"]
    assert not {one["pid"] for one in gang.ranks(0)} & {one["pid"] for one in gang.ranks(1)}
    assert gang.events("decision")[0]["ending_seconds"] < 15, "no rank is waited for that cannot leave"
    time.sleep(1)
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.rows() == ["L140", "L10"]


STEPS_ONCE = """
import os, sys, time
sys.path.insert(0, os.environ["HOME"])
import program
sys.argv[1:] = ["step"] if os.environ["UNDERSTUDY_LAUNCH"] == "0" else []
program.main()
"""


def test_a_launch_that_has_no_step_long_after_an_earlier_one_had_is_named_and_goes_on(gang: LocalGang) -> None:
    script = gang.home / "steps_once.py"
    script.write_text(STEPS_ONCE)
    quick = "from understudy_launcher import __main__ as m, launcher; launcher.FIRST_STEP_SECONDS = 0.2; m.main()"
    gang.run = ("-P", "-c", quick)
    gang.start([*THREE, "--progress-file", "steps"], [str(gang.python), str(script)])
    gang.wait_for_launch(0, 3)
    gang.wait_for(lambda: gang.lines("steps"), 60, "a first step")
    time.sleep(1.0)  # the launcher has seen it
    gang.condemn("n1")
    gang.wait_for_launch(1, 3)
    gang.wait_for(lambda: gang.events("no_first_step"), 60, "it is reported")
    assert "SLURM_JOB_NODELIST" in gang.output
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.rows() == ["L50", "L10"]
    assert len(gang.events("no_first_step")) == 1


# -- the program, or a node of it ------------------------------------------------------------------------------------

PEERS = """
import os, socket, sys, time
from pathlib import Path

def meet():
    world, where = int(os.environ["WORLD_SIZE"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        server = socket.create_server(where)
        return [server.accept()[0] for _ in range(world - 1)]
    while True:
        try:
            return [socket.create_connection(where)]
        except ConnectionRefusedError:
            time.sleep(0.01)

sys.path.insert(0, os.environ["HOME"])
import program
peers = meet()
for peer in peers:
    peer.setblocking(False)
program.append(Path(os.environ["HOME"], "ranks"), {name: os.environ.get(name) for name in program.NAMES})
while not Path(os.environ["HOME"], "finish").exists():
    time.sleep(0.05)
    if os.environ["SLURMD_NODENAME"] == "n2":
        sys.exit("this node is broken")
    for peer in peers:
        try:
            gone = peer.recv(1) == b""
        except BlockingIOError:
            continue
        if gone and not Path(os.environ["HOME"], "finish").exists():
            time.sleep(0.2)
            sys.exit("a peer is gone")
"""


def test_ranks_that_fail_because_of_a_peer_do_not_end_the_job(gang: LocalGang) -> None:
    script = gang.home / "peers.py"
    script.write_text(PEERS)
    gang.start(THREE, [str(gang.python), str(script)])
    gang.wait_for_launch(1, 3)
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.nodes(1) == ["n1", "n4", "n3"]
    assert gang.rows() == ["L40", "L10"]
    assert gang.events("decision")[0]["blamed"] == {}


@pytest.mark.parametrize(("nodes", "rows"), [(5, ["L40", "L30"]), (3, ["L30"])], ids=["spares", "no spare"])
def test_a_program_that_cannot_start_is_reported_in_two_launches(gang: LocalGang, nodes: int, rows: list[str]) -> None:
    """Though its progress file is there, of an earlier job."""
    (gang.home / "steps").write_text("500\n")
    script = gang.home / "broken.py"
    script.write_text("import no_such_module_at_all\n")
    gang.start([*THREE, "--progress-file", "steps"], [str(gang.python), str(script)], nodes)
    assert gang.exit_code() == 1
    assert gang.rows() == rows
    assert "No node is to blame" in gang.output


def test_a_usage_error_is_reported_at_once(gang: LocalGang) -> None:
    gang.start(THREE, [str(gang.python), str(gang.home / "no_such_script.py")])
    assert gang.exit_code() == 2
    assert gang.rows() == ["L30"]


# -- the end -----------------------------------------------------------------------------------------------------------

WARNED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, os.environ["HOME"])
import program
home = Path(os.environ["HOME"])
signal.signal(signal.SIGTERM, lambda *_: program.append(home / "warned", {"rank": os.environ["RANK"]}))
program.main()
"""


def start_warned(gang: LocalGang) -> None:
    script = gang.home / "warned.py"
    script.write_text(WARNED)
    gang.start([*THREE, "--checkpoint-signal", "TERM", "--term-seconds", "0.5"], [str(gang.python), str(script)])
    gang.wait_for_launch(0, 3)


@pytest.mark.parametrize("to_the_step", [True, False], ids=["to the step", "to the batch script"])
def test_sigterm_can_be_slurms_warning(gang: LocalGang, to_the_step: bool) -> None:
    start_warned(gang)
    for node in ("n1", "n2", "n3") if to_the_step else ():
        os.kill(gang.seat(node), signal.SIGTERM)
    if not to_the_step:
        gang.launcher.terminate()
    gang.wait_for(lambda: gang.lines("warned"), 60, "the ranks have heard of it")
    time.sleep(2.5)
    assert gang.launcher.poll() is None, "the ranks have the grace time"
    assert sorted(one["rank"] for one in gang.lines("warned")) == ["0", "1", "2"], "each once"
    gang.launcher.terminate()
    assert gang.exit_code() == 128 + signal.SIGTERM


def test_a_sigterm_to_the_step_is_no_warning_unless_it_was_configured(gang: LocalGang) -> None:
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    os.kill(gang.seat("n2"), signal.SIGTERM)
    time.sleep(0.3)
    assert not gang.events("checkpoint_asked")


def test_seats_whose_step_slurm_ends_do_not_wait_for_a_launcher_that_is_silent(gang: LocalGang) -> None:
    """The power of the batch host is gone: no connection is reset. Slurm's SIGKILL would come after 30 s."""
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    rank = read_process(gang.ranks(0)[1]["pid"])
    assert rank is not None
    os.kill(gang.launcher_pid(), signal.SIGSTOP)
    os.kill(gang.seat("n2"), signal.SIGTERM)
    gang.wait_for(lambda: not is_running(rank), 12, "its rank has ended")


def test_a_warning_ends_no_rank_that_has_no_handler_for_it(gang: LocalGang) -> None:
    gang.start(THREE, gang.simple("--no-handler"))
    gang.wait_for_launch(0, 3)
    gang.launcher.send_signal(signal.SIGUSR1)
    gang.wait_for(lambda: "no handler for SIGUSR1" in gang.output, 60, "the job's output reports it")
    gang.finish()
    assert gang.exit_code() == 0, gang.output
    assert gang.output.count("no handler") == 1


@pytest.mark.parametrize("shell", ["/bin/sh -c", "/bin/bash -c"])
@pytest.mark.parametrize("begins", ["", "trap 'rm -f nothing' EXIT; "])
def test_a_warning_reaches_a_training_below_a_shell(gang: LocalGang, shell: str, begins: str) -> None:
    """The shell would end. With a trap on EXIT bash catches the signal, runs the trap, and ends all the same."""
    gang.start(THREE, [*shell.split(), f"{begins}{shlex.join(gang.simple())}; exit $?"])
    gang.wait_for_launch(0, 3)
    gang.launcher.send_signal(signal.SIGUSR1)
    gang.wait_for(lambda: len(gang.lines("warned")) == 3, 60, "every rank has heard of it")
    gang.finish()
    assert gang.exit_code() == 0, gang.output


def test_a_node_lost_after_the_warning_leaves_the_job_to_be_requeued(gang: LocalGang) -> None:
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    gang.launcher.send_signal(signal.SIGUSR1)
    gang.wait_for(lambda: len(gang.lines("warned")) == 3, 60, "every rank has heard of it")
    gang.condemn("n2")
    assert gang.exit_code() == 75
    assert gang.rows() == ["L20"]


def test_the_control_plane_hears_how_a_gang_ended_that_a_user_ended(gang: LocalGang) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(gang.home / "agent.sock"))
        server.listen()
        thread = threading.Thread(target=hear, args=(server, heard))
        thread.start()
        gang.start([*THREE, "--term-seconds", "0.2"])
        gang.wait_for_launch(0, 3)
        gang.launcher.terminate()
        assert gang.exit_code() == 143
        thread.join(10)
    (ended,) = [line for line in heard if b'"launch_ended"' in line]
    assert b"ended by SIGTERM" in ended


def hear(server: socket.socket, heard: list[bytes]) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as lines:
        heard.extend(lines)


# -- a launcher that is killed ---------------------------------------------------------------------------------------


def test_a_launcher_that_is_killed_finds_its_seats_again_and_the_ranks_do_not_notice(gang: LocalGang) -> None:
    gang.start([*THREE, "--rearm-seconds", "1"])
    gang.wait_for_launch(0, 3)
    gang.wait_for_standbys(5)
    before = [one["pid"] for one in gang.ranks(0)]
    gang.kill_launcher()
    gang.wait_for(lambda: gang.events("rejoined"), 20, "the seats are connected again")
    assert gang.events("rejoined")[0]["missing"] == []
    assert all(read_process(pid) for pid in before)
    os.kill(gang.seat("n2"), signal.SIGKILL)
    gang.wait_for_launch(1, 3)
    first, spare, last = gang.nodes(1)
    assert (first, last) == ("n1", "n3")
    assert spare in {"n4", "n5"}
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.rows() == ["L50", "L10"]


def test_what_happened_to_ranks_while_there_was_no_launcher_is_reported_to_the_next(gang: LocalGang) -> None:
    """The guardian stands still, so that no launcher is started before it has happened."""
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    ranks = {one["SLURMD_NODENAME"]: int(one["pid"]) for one in gang.ranks(0)}
    launcher = gang.launcher_pid()
    gang.launcher.send_signal(signal.SIGSTOP)
    os.kill(launcher, signal.SIGKILL)
    os.kill(gang.seat("n2"), signal.SIGKILL)
    os.kill(ranks["n3"], signal.SIGKILL)
    gang.launcher.send_signal(signal.SIGUSR1)
    gang.launcher.send_signal(signal.SIGCONT)
    gang.wait_for(lambda: gang.events("rejoined"), 30, "the next launcher has waited for them")
    assert gang.events("rejoined")[0]["missing"] == ["n2"]
    gang.wait_for(lambda: gang.events("checkpoint_asked"), 20, "the signal was not lost")
    assert gang.exit_code() == 75, "a node was lost after Slurm's warning"


@pytest.mark.parametrize("ended", [False, True], ids=["goes on", "ends meanwhile"])
def test_a_launcher_that_is_killed_while_it_ends_a_launch_goes_on_with_that(gang: LocalGang, ended: bool) -> None:
    gang.stick("n3")
    gang.start([*THREE, "--kill-seconds", "20"])
    gang.wait_for_launch(0, 3)
    gang.condemn("n2")
    gang.wait_for(lambda: gang.events("fault"), 60, "the verdict is heard")
    if ended:
        gang.launcher.send_signal(signal.SIGSTOP)
        os.kill(gang.launcher_pid(), signal.SIGKILL)
        gang.unstick("n3")
        gang.launcher.send_signal(signal.SIGCONT)
    else:
        gang.kill_launcher()
        gang.wait_for(lambda: gang.events("rejoined"), 20, "the seats are connected again")
        gang.unstick("n3")
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) in (["n1", "n4", "n3"], ["n1", "n5", "n3"]), "whichever spare connected again first"
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.rows() == ["L50", "L10"]


def test_a_launcher_that_is_killed_while_it_waits_for_a_node_waits_on(gang: LocalGang) -> None:
    gang.start([*THREE, "--when-out-of-spares", "wait"], nodes=3)
    gang.wait_for_launch(0, 3)
    gang.condemn("n2")
    gang.wait_for(lambda: gang.events("waiting"), 60, "it waits")
    gang.kill_launcher()
    gang.wait_for(lambda: gang.events("launcher_started_again"), 20, "another one goes on")
    (gang.home / "verdicts").unlink()
    gang.wait_for_launch(1, 3)
    gang.finish()
    assert gang.exit_code() == 0


def test_a_launcher_that_is_killed_again_and_again_ends_the_job(gang: LocalGang) -> None:
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    ranks = [read_process(one["pid"]) for one in gang.ranks(0)]
    gang.kill_launcher()
    gang.kill_launcher()
    os.kill(gang.launcher_pid(), signal.SIGKILL)
    assert gang.exit_code() == 128 + signal.SIGKILL
    gang.wait_for(lambda: not any(one and is_running(one) for one in ranks), 20, "no rank is left")


def test_a_gang_ends_when_guardian_and_launcher_are_killed(gang: LocalGang) -> None:
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    ranks = [read_process(one["pid"]) for one in gang.ranks(0)]
    launcher = gang.launcher_pid()
    gang.launcher.kill()
    os.kill(launcher, signal.SIGKILL)
    gang.wait_for(lambda: not any(one and is_running(one) for one in ranks), 20, "no rank is left")


def test_a_gang_ends_when_the_guardian_is_killed(gang: LocalGang) -> None:
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    ranks = [read_process(one["pid"]) for one in gang.ranks(0)]
    gang.launcher.kill()
    gang.wait_for(lambda: not any(one and is_running(one) for one in ranks), 20, "no rank is left")


# -- open files ------------------------------------------------------------------------------------------------------


def test_a_gang_that_needs_more_open_files_gets_them_and_its_ranks_keep_their_limit(gang: LocalGang) -> None:
    gang.start(THREE, files="64:")
    gang.wait_for_launch(0, 3)
    rank = int(gang.ranks(0)[0]["pid"])
    assert resource.prlimit(gang.launcher.pid, resource.RLIMIT_NOFILE)[0] == needed(5) + STRANGERS_MAX
    assert resource.prlimit(rank, resource.RLIMIT_NOFILE)[0] == 64


def test_with_too_few_files_for_standbys_a_node_is_replaced_all_the_same(gang: LocalGang) -> None:
    gang.start([*THREE, "--rearm-seconds", "0"], files=f"64:{needed(5, seats=1)}")
    gang.wait_for_launch(0, 3)
    assert "they need 74 open files, and this job may open 69" in gang.events("no_standbys")[0]["message"]
    for number, (lost, taken) in enumerate((("n2", "n4"), ("n4", "n5")), 1):
        os.kill(gang.seat(lost), signal.SIGKILL)
        gang.wait_for_launch(number, 3)
        assert gang.nodes(number) == ["n1", taken, "n3"], gang.output
    assert {one["generation"] for one in gang.events("seat")} == {0}, "all of them with the seats of the first"
    masters = [one["master"] for one in gang.events("launch")]
    assert len(set(masters)) == len(masters) == 3, "each has a port of its own"
    gang.finish()
    assert gang.exit_code() == 0


# -- file systems ----------------------------------------------------------------------------------------------------


def test_a_launcher_whose_file_system_hangs_watches_its_gang_and_replaces_a_node(gang: LocalGang) -> None:
    """Its files, and its output, are FIFOs: reading from one waits, and so does writing, as no program reads."""
    for name in ("steps", "bad", "events", "output"):
        os.mkfifo(gang.home / name)
    full = [os.open(gang.home / name, os.O_RDWR | os.O_NONBLOCK) for name in ("events", "output")]
    for one in full:
        with contextlib.suppress(BlockingIOError):
            while os.write(one, b"x" * 4096):
                pass
    gang.start([*THREE, "--progress-file", "steps", "--verdicts", "bad", "--events", "events"])
    gang.wait_for_launch(0, 3)
    os.kill(gang.seat("n2"), signal.SIGKILL)
    gang.wait_for_launch(1, 3)
    assert gang.nodes(1) == ["n1", "n4", "n3"]
    gang.finish()
    assert gang.exit_code() == 0
    for one in full:
        os.close(one)


def test_a_node_on_which_programs_start_slowly_is_not_lost(gang: LocalGang) -> None:
    gang.slow("n2")
    gang.start(THREE)
    gang.wait_for_launch(0, 3)
    assert gang.nodes(0) == ["n1", "n2", "n3"]
    gang.finish()
    assert gang.exit_code() == 0
    assert gang.rows() == ["L10"]


# -- no other node ----------------------------------------------------------------------------------------------------


def test_a_gang_that_waits_for_the_pool_shrinks_once_the_site_lets_it_and_never_below_what_its_job_allows(
    gang: LocalGang,
) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(gang.home / "agent.sock"))
        agent.listen()
        gang.start([*THREE, "--min-nodes", "2", "--wait-for-requeue", "8"], nodes=3)
        line, _ = agent.accept()
        with line:
            gang.wait_for_launch(0, 3)
            gang.condemn("n2")
            gang.wait_for(lambda: gang.events("waiting"), 60, "it waits for the pool")
            line.sendall(rank_messages.encode(LauncherAnswer("a", LauncherOrders(may_shrink=True))))
            gang.wait_for_launch(1, 2)
            assert gang.nodes(1) == ["n1", "n3"]
            gang.condemn("n3")
            assert gang.exit_code() == 75, "it has waited again"
    assert gang.rows() == ["L80", "L80"]


def test_a_gang_whose_newcomer_fails_waits_for_the_pool_and_starts_again_where_it_gives_no_node(
    gang: LocalGang,
) -> None:
    """n2 came with a requeue, and its rank fails at once: a package may be missing there."""
    earlier = EarlierAllocations(best_step=40, newcomers=("n2",))
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(gang.home / "agent.sock"))
        agent.listen()
        gang.start([*THREE, "--wait-for-requeue", "0.5"], nodes=3)
        line, _ = agent.accept()
        with line:
            line.sendall(rank_messages.encode(LauncherAnswer("a", LauncherOrders(), earlier)))
            gang.wait_for_launch(0, 3)
            gang.wait_for(lambda: gang.events("orders_received"), 60, "it knows the newcomer")
            os.kill(gang.ranks(0)[1]["pid"], signal.SIGKILL)
            gang.wait_for_launch(1, 3)
            assert gang.nodes(1) == ["n1", "n2", "n3"]
            (waiting,) = gang.events("waiting")
            assert "then starting it on the same nodes again" in waiting["message"]
            os.kill(gang.ranks(1)[1]["pid"], signal.SIGKILL)
            gang.wait_for_launch(2, 3)
            gang.finish()
            assert gang.exit_code() == 0
    assert gang.rows() == ["L125", "L130", "L10"], "the pool is asked once"


def test_a_node_that_is_only_silent_leaves_no_gang_by_the_sites_permission_to_shrink(gang: LocalGang) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(gang.home / "agent.sock"))
        agent.listen()
        gang.start([*THREE, "--min-nodes", "2"], nodes=3)
        line, _ = agent.accept()
        with line:
            gang.wait_for_launch(0, 3)
            line.sendall(rank_messages.encode(LauncherAnswer("a", LauncherOrders(may_shrink=True))))
            line.settimeout(60)
            reported = b""
            while b'"nodes_min": 2' not in reported:
                piece = line.recv(65536)
                assert piece, "the launcher has left"
                reported += piece
            os.kill(gang.seat("n2"), signal.SIGSTOP)
            gang.wait_for(lambda: gang.events("silent") or gang.events("fault"), 30, "the node is silent")
            os.kill(gang.seat("n2"), signal.SIGCONT)
            gang.finish()
            assert gang.exit_code() == 0
    assert gang.rows() == ["L10"]


# -- the self-check before the first launch ---------------------------------------------------------------------------


def checked(command: str) -> list[str]:
    return [*THREE, "--selfcheck", "--selfcheck-command", command]


BAD_N2 = 'echo "GPU 3: 12 wrong elements"; [ $SLURMD_NODENAME != n2 ]'


def test_a_node_that_fails_its_self_check_is_replaced_before_any_rank_starts(gang: LocalGang) -> None:
    gang.start(checked(f"{BAD_N2} && [ $SLURMD_NODENAME != n4 ]"), nodes=6)
    gang.wait_for_launch(0, 3)
    assert gang.nodes(0) == ["n1", "n5", "n3"]
    failed = {one["node"]: one["why"] for one in gang.events("selfcheck_failed")}
    assert failed == dict.fromkeys(("n2", "n4"), "GPU 3: 12 wrong elements")
    assert [one["node"] for one in gang.events("spare_bad")] == ["n4"], "a spare that fails is not used either"
    assert gang.rows() == ["L50"]
    gang.finish()
    assert gang.exit_code() == 0


def test_without_a_spare_the_launcher_names_the_node_what_failed_and_what_to_do(gang: LocalGang) -> None:
    gang.start([*checked(BAD_N2), "--wait-for-requeue", "0.1"], nodes=3)
    assert gang.exit_code() == 75
    assert "n2: its self-check failed: GPU 3: 12 wrong elements; run `" in gang.output
    assert "ask sbatch for --exclude=n2" in gang.output
    assert gang.ranks(0) == []


def test_where_most_nodes_fail_the_check_is_the_cause_and_the_gang_starts(gang: LocalGang) -> None:
    gang.start(checked("exit 1"), nodes=4)
    gang.wait_for_launch(0, 3)
    assert "the self-check failed on 4 nodes (n" in gang.output
    gang.finish()
    assert gang.exit_code() == 0


def test_a_check_that_cannot_run_keeps_no_node_from_the_gang_and_later_launches_have_none(gang: LocalGang) -> None:
    gang.start(checked("echo ran >>$HOME/ran.$SLURMD_NODENAME; exit 127"), gang.simple("exit:0:n3:7"), nodes=4)
    gang.wait_for_launch(1, 3)
    assert "could not run on 4 nodes" in gang.output
    assert [(gang.home / f"ran.n{number}").read_text() for number in range(1, 5)] == ["ran\n"] * 4
    gang.finish()
    assert gang.exit_code() == 0


# -- what srun would have given to each rank ---------------------------------------------------------------------------

two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks can be bound apart on two CPUs only")


@two_cpus
@pytest.mark.parametrize("preload", [[], ["--preload", "json"]], ids=["cold", "warm"])
def test_ranks_have_the_cpus_and_gpus_of_a_task_also_after_a_fault(gang: LocalGang, preload: list[str]) -> None:
    job = {"SLURM_CPUS_PER_TASK": "1", "SLURM_GPUS_PER_TASK": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    gang.start(["--nodes", "2", "--procs-per-node", "2", "--rearm-seconds", "0", *preload], nodes=3, **job)
    gang.wait_for_launch(0, 4)
    gang.wait_for_standbys(3, "warm" if preload else "seat")
    assert "launch 0: 4 ranks, 2 on each of 2 nodes (n[1-2]); 1 spare (n3)" in gang.output
    gang.condemn("n1")
    gang.wait_for_launch(1, 4)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for launch in (0, 1):
        for one in gang.ranks(launch):
            local_rank = int(one["LOCAL_RANK"])
            assert one["cpus"] == [(first, second)[local_rank]]
            assert one["CUDA_VISIBLE_DEVICES"] == ("0,1", "2,3")[local_rank]
            assert (one["SLURM_CPUS_PER_TASK"], one["OMP_NUM_THREADS"]) == ("1", "1")


def test_without_such_a_number_ranks_have_all_of_their_node(gang: LocalGang) -> None:
    gang.start(["--nodes", "1", "--procs-per-node", "2"], nodes=2, CUDA_VISIBLE_DEVICES="0,1,2,3")
    gang.wait_for_launch(0, 2)
    assert [one["cpus"] for one in gang.ranks(0)] == [sorted(os.sched_getaffinity(0))] * 2
    assert [one["CUDA_VISIBLE_DEVICES"] for one in gang.ranks(0)] == ["0,1,2,3"] * 2


def test_gpus_that_are_not_there_end_the_job_with_a_message_and_blame_no_node(gang: LocalGang) -> None:
    gang.start(["--nodes", "2", "--procs-per-node", "2", "--gpus-per-task", "2"], nodes=3, CUDA_VISIBLE_DEVICES="0,1,2")
    assert gang.exit_code() == 2
    assert "2 ranks with 2 GPUs each, and CUDA_VISIBLE_DEVICES has 3" in gang.output
    assert gang.rows() == ["L30"]


def test_a_node_without_a_free_port_is_not_replaced_and_the_launcher_says_what_is_missing(gang: LocalGang) -> None:
    """One port of the range is free, and the launcher takes it."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        options = f"--nodes 2 --procs-per-node 1 --port-range {port}-{port + 1}"
        gang.start(options.split(), nodes=3)
        assert gang.exit_code() != 0
    (given_up,) = gang.events("cannot_start")
    assert given_up["why"] == "no free TCP port on n1 for the gang's ranks to meet at"
    assert f"no free TCP port found from {port} to {port + 1}; see --port-range" in gang.output
    assert {tuple(one["seats"]) for one in gang.events("ordered")} == {("n1", "n2")}, "no node is to blame"


def test_a_library_that_is_imported_in_advance_finds_the_threads_of_a_rank(gang: LocalGang) -> None:
    """OpenMP reads OMP_NUM_THREADS when it is loaded."""
    (gang.home / "reads_threads.py").write_text("import os\nTHREADS = os.environ.get('OMP_NUM_THREADS')\n")
    script = gang.home / "shows.py"
    script.write_text("import reads_threads\nprint(f'threads {reads_threads.THREADS}', flush=True)\n")
    command = [str(gang.python), str(script)]
    gang.start(["--nodes", "1", "--procs-per-node", "2", "--preload", "reads_threads"], command, nodes=2)
    assert gang.exit_code() == 0
    assert gang.output.count("threads 1") == 2


def test_options_for_srun_reach_it(gang: LocalGang) -> None:
    srun = gang.home / "bin" / "srun"
    srun.write_text(srun.read_text().replace("exec", 'echo "$@" >> "$HOME/srun"; exec'))
    image = "--container-image=image.sqsh"
    gang.start(["--nodes", "1", "--seat-python", sys.executable, f"--srun-args={image} --mem=0"], nodes=2)
    gang.wait_for_launch(0, 1)
    (line, *_) = (gang.home / "srun").read_text().splitlines()
    assert line.startswith(f"{image} --mem=0 --container-mounts={gang.home}:{gang.home} --jobid=1 ")
