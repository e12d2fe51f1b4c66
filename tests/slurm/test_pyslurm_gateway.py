"""The process of pyslurm may die, hang or answer nonsense: the gateway goes on.

What pyslurm really does on a real cluster is held by the contract suite; here it is a module that misbehaves on demand.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from understudy_controlplane.config import Gateway
from understudy_controlplane.config import Slurm as Policy
from understudy_controlplane.fleet.slurm import ArrayTask, JobAddress, SlurmNode
from understudy_controlplane.slurm.choose import choose
from understudy_controlplane.slurm.cli import CommandLineGateway
from understudy_controlplane.slurm.fenced import fenced
from understudy_controlplane.slurm.protocol import SlurmError, SlurmUnavailable
from understudy_controlplane.slurm.pyslurm_gateway import PyslurmGateway

pytestmark = pytest.mark.integration

BY_COMMAND_LINE = [SlurmNode("n1", "n1", 6818, "IDLE", frozenset(), ("train",), reason="read by the command line")]

MODULE = """
import os, time
{begins}
__version__ = "25.11.2"
class RPCError(Exception): pass
def slurm_api_version(): return (25, 11, 2)
class Nodes:
    @staticmethod
    def load():
        {load}
class Jobs:
    @staticmethod
    def load():
        return {{}}
class Node:
    def __init__(self, name=None, **changes): pass
    def modify(self, changes):
        {modify}
class Job:
    def __init__(self, number): pass
    def requeue(self):
        raise RPCError("Unable to contact slurm controller (connect failure)")
    def release(self):
        raise RPCError("Invalid job id specified")
"""


class RecordedCommandLine(CommandLineGateway):
    def __init__(self) -> None:
        super().__init__(scontrol="/nowhere/scontrol")
        self.drained: list[str] = []
        self.released: list[JobAddress] = []

    def nodes(self) -> list[SlurmNode]:
        return BY_COMMAND_LINE

    def drain_node(self, node: str, reason: str) -> None:
        self.drained.append(f"{node} {reason}")

    def release_job(self, job: JobAddress) -> None:
        self.released.append(job)


Make = Callable[..., PyslurmGateway]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[PyslurmGateway] = []

    def gateway(
        load: str = "return {}", modify: str = "pass", begins: str = "", timeout_seconds: float = 60.0
    ) -> PyslurmGateway:
        (tmp_path / "pyslurm.py").write_text(MODULE.format(load=load, modify=modify, begins=begins))
        environment = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
        made.append(PyslurmGateway(RecordedCommandLine(), "", environment, timeout_seconds))
        return made[-1]

    yield gateway
    for one in made:
        one.stop()


@pytest.mark.parametrize("death", ["os.abort()", "os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_a_reading_that_pyslurm_dies_of_is_the_command_lines_from_then_on(make: Make, death: str) -> None:
    gateway = make(load=death)
    assert gateway.nodes() == BY_COMMAND_LINE
    assert gateway.worker.pid is None
    assert gateway.jobs() == [], "the others go on through a new process"
    pid = gateway.worker.pid
    assert gateway.nodes() == BY_COMMAND_LINE
    assert gateway.worker.pid == pid, "it is not asked for nodes again"


@pytest.mark.parametrize(
    "trouble", ["raise UnicodeDecodeError('utf-8', b'bad\\xff', 3, 4, 'odd')", "return {1: 'rubbish'}"]
)
def test_a_reading_that_somebodys_text_makes_impossible_is_taken_from_the_command_line(
    make: Make, trouble: str
) -> None:
    gateway = make(load=trouble)
    assert gateway.nodes() == BY_COMMAND_LINE
    pid = gateway.worker.pid
    assert gateway.nodes() == BY_COMMAND_LINE
    assert gateway.worker.pid == pid is not None


def test_a_call_that_hangs_keeps_no_reading_waiting_and_is_given_up(make: Make) -> None:
    gateway = make(modify="time.sleep(600)", timeout_seconds=10.0)
    outcome: list[str] = []

    def drain() -> None:
        try:
            gateway.drain_node("n1", "why")
        except SlurmUnavailable as error:
            outcome.append(str(error))

    gateway.jobs()
    hanging = threading.Thread(target=drain)
    hanging.start()
    while not gateway._writer.pid:
        time.sleep(0.01)
    assert gateway.jobs() == []
    assert hanging.is_alive()
    hanging.join()
    assert outcome == ["pyslurm's drain_node did not end within 10.0 s"]
    assert gateway.jobs() == []


def test_a_task_of_an_array_is_the_command_lines_because_pyslurm_takes_numbers_only() -> None:
    command_line = RecordedCommandLine()
    PyslurmGateway(command_line, "/nowhere/python").release_job(ArrayTask(7, 3))
    assert command_line.released == [ArrayTask(7, 3)]


def test_an_effect_that_pyslurm_dies_of_has_an_unknown_outcome_and_is_then_the_command_lines(make: Make) -> None:
    gateway = make(modify="os.abort()")
    with pytest.raises(SlurmUnavailable, match=r"ended by SIGABRT during drain_node"):
        gateway.drain_node("n1", "understudy: x")
    gateway.drain_node("n1", "understudy: x")
    command_line = gateway._command_line
    assert isinstance(command_line, RecordedCommandLine)
    assert command_line.drained == ["n1 understudy: x"]


def test_a_change_that_was_ended_is_made_by_pyslurm_again(make: Make) -> None:
    """Its process ends itself at the limit. That is no death that pyslurm caused."""
    gateway = make(modify="time.sleep(60)")
    for _ in range(2):
        with pytest.raises(SlurmUnavailable, match="drain_node did not end within"):
            fenced(gateway, lambda: "", 0.5).drain_node("n1", "understudy: x")
    command_line = gateway._command_line
    assert isinstance(command_line, RecordedCommandLine)
    assert command_line.drained == []


def test_the_start_of_pyslurm_does_not_count_as_time_of_the_change(make: Make) -> None:
    gateway = make(begins="time.sleep(3)")
    fenced(gateway, lambda: "", 2.0).drain_node("n1", "understudy: x")


def test_what_pyslurm_prints_does_not_come_between_the_answers(make: Make) -> None:
    assert make(load="print('error: slurm_something'); os.system('echo more'); return {}").nodes() == []


def test_a_refusal_names_the_call_and_an_absent_slurmctld_is_another_error(make: Make) -> None:
    gateway = make(modify="raise ValueError('what is this')")
    with pytest.raises(SlurmError, match=r"release_job\(7\) failed: Invalid job id specified") as refused:
        gateway.release_job(7)
    assert not isinstance(refused.value, SlurmUnavailable)
    with pytest.raises(SlurmUnavailable, match=r"requeue_failed_job\(7\) failed: Unable to contact"):
        gateway.requeue_failed_job(7)
    with pytest.raises(SlurmError, match=r"ValueError: what is this"):
        gateway.resume_node("n1")


def test_an_error_of_pyslurm_that_quotes_a_user_is_no_absent_slurmctld(make: Make) -> None:
    assert make(load="raise ValueError('no number: Connection refused')").nodes() == BY_COMMAND_LINE


def test_names_are_checked_before_they_travel(make: Make) -> None:
    gateway = make()
    for call, arguments in (
        (gateway.drain_node, ("n1,n2", "x")),
        (gateway.drain_node, ("n1", " ")),
        (gateway.delete_reservation, ("",)),
        (gateway.set_reservation_nodes, ("pool", [])),
    ):
        with pytest.raises(SlurmError):
            call(*arguments)
    assert gateway._writer.pid is None


def scontrol(directory: Path, version: str) -> Path:
    """A program that answers `scontrol show config` as a cluster of that version would."""
    program = directory / "scontrol"
    program.write_text(f"#!/bin/sh\necho 'ClusterName = testbed'\necho 'SLURM_VERSION = {version}'\n")
    program.chmod(0o755)
    return program


def environment(directory: Path) -> dict[str, str]:
    (directory / "pyslurm.py").write_text(MODULE.format(load="return {}", modify="pass", begins=""))
    return {"PYTHONPATH": str(directory), "PATH": os.environ["PATH"]}


def policy(program: Path, gateway: Gateway = Gateway.AUTO, python: Sequence[str] = ()) -> Policy:
    return Policy(gateway=gateway, scontrol=str(program), pyslurm_python="".join(python))


def test_auto_takes_pyslurm_where_it_was_built_for_the_clusters_version(tmp_path: Path) -> None:
    choice = choose(policy(scontrol(tmp_path, "25.11.4")), environment(tmp_path))
    assert isinstance(choice.slurm, PyslurmGateway)
    choice.slurm.stop()
    assert (choice.name, choice.why) == (
        "pyslurm",
        "pyslurm can be imported and matches the cluster's version of Slurm",
    )


def test_auto_takes_the_command_line_where_versions_differ_and_gives_the_reason(tmp_path: Path) -> None:
    choice = choose(policy(scontrol(tmp_path, "26.05.5")), environment(tmp_path))
    assert choice.name == "cli"
    assert "pyslurm 25.11.2 was built for Slurm 25.11, the cluster's is 26.05" in choice.why


def test_who_asks_for_pyslurm_by_name_answers_for_what_it_was_built_for(tmp_path: Path) -> None:
    choice = choose(policy(scontrol(tmp_path, "26.05.5"), Gateway.PYSLURM), environment(tmp_path))
    assert isinstance(choice.slurm, PyslurmGateway)
    choice.slurm.stop()


def test_without_pyslurm_auto_takes_the_command_line_and_by_name_it_is_refused(tmp_path: Path) -> None:
    program = scontrol(tmp_path, "25.11.4")
    nothing = {"PATH": os.environ["PATH"]}
    choice = choose(policy(program), nothing)
    assert choice.name == "cli"
    assert f"{sys.executable} cannot import pyslurm" in choice.why
    with pytest.raises(SlurmError, match=r'slurm.gateway is "pyslurm", but .*cannot import pyslurm'):
        choose(policy(program, Gateway.PYSLURM), nothing)
    with pytest.raises(SlurmError, match=r"/nowhere/python cannot be run: .*set slurm.pyslurm_python"):
        choose(policy(program, Gateway.PYSLURM, "/nowhere/python"), nothing)


def test_with_slurm_away_auto_takes_the_command_line(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2; exit 1\n")
    program.chmod(0o755)
    assert choose(policy(program), environment(tmp_path)).name == "cli"
    assert choose(policy(program, Gateway.CLI), environment(tmp_path)).why == 'slurm.gateway is "cli"'
