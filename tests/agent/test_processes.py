"""The agent names processes that keep a GPU and neither end nor continue.

/proc is a folder with what Linux 6.18 showed of a process in state D and of a zombie whose second thread lived. Tests
write SIGKILL, other threads and devices into it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import REPOSITORY
from understudy_agent.loop import PROCESSES_SECONDS
from understudy_agent.sample.processes import Processes
from understudy_wire.hardware import STUCK_PROCESSES_MAX, Stuck, StuckProcess

RECORDED = REPOSITORY / "tests/data/world/gres/proc"
PID = 4711
KILLED = "0000000000000100"
ENDING = 0x4
OF_KERNEL = 0x20_0000


class Proc:
    """A folder in the form of /proc, and readings of it every half minute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = Processes(folder)
        self.now = 0.0
        self.stepd(5000, "0::/system.slice/slurmstepd.scope/job_77/step_0/slurm")
        self.write("driver/nvidia/gpus/0000:43:00.0/information", "Model: \t\t NVIDIA H100\nDevice Minor: \t 1\n")

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def stepd(self, pid: int, cgroup: str, later_ticks: int = 0) -> None:
        fields = (RECORDED / "waiting.stat").read_text().rpartition(")")[2].split()
        fields[0], fields[19] = "S", str(int(fields[19]) + later_ticks)
        self.write(f"{pid}/stat", f"{pid} (slurmstepd) {' '.join(fields)}\n")
        self.write(f"{pid}/cgroup", f"{cgroup}\n")

    def ends(self, pid: int) -> None:
        for file in (self.folder / f"{pid}").iterdir():
            file.unlink()

    def thread(
        self,
        number: int = PID,
        *,
        state: str = "D",
        flags: int = 0,
        pending: str = "",
        switches: int = 2,
        dumping: bool = False,
        threads: int = 1,
        pid: int = PID,
        parent: int = 1,
    ) -> None:
        fields = (RECORDED / "waiting.stat").read_text().rpartition(")")[2].split()
        fields[0], fields[1], fields[6], fields[17] = state, str(parent), str(int(fields[6]) | flags), str(threads)
        stat = f"{number} (train (x) 7) {' '.join(fields)}\n"
        status = (RECORDED / "waiting.status").read_text()
        status = re.sub(r"(?m)^SigPnd:\t.*", f"SigPnd:\t{pending or '0' * 16}", status)
        status = re.sub(r"(?m)^voluntary_ctxt_switches:\t.*", f"voluntary_ctxt_switches:\t{switches}", status)
        status = status.replace("CoreDumping:\t0", f"CoreDumping:\t{dumping:d}")
        status = re.sub(r"(?m)^Uid:\t0\t", "Uid:\t1000\t", status)
        for name, text in (("stat", stat), ("status", status), ("wchan", (RECORDED / "waiting.wchan").read_text())):
            self.write(f"{pid}/task/{number}/{name}", text)
            if number == pid:
                self.write(f"{pid}/{name}", text)
        self.write(f"{pid}/cgroup", "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n")

    def devices(self, *names: str, number: int = PID, pid: int = PID) -> None:
        folder = self.folder / f"{pid}/task/{number}/fd"
        folder.mkdir(parents=True, exist_ok=True)
        for link in folder.iterdir():
            link.unlink()
        for index, name in enumerate(names):
            (folder / str(index)).symlink_to(f"/dev/{name}")

    def read(self, seconds: float = 0.0) -> list[StuckProcess]:
        """The last of the readings within this time."""
        found = self.processes.read(self.now)
        until = self.now + seconds
        while self.now < until:
            self.now += PROCESSES_SECONDS
            found = self.processes.read(self.now)
        return found


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_process_that_waits_in_the_kernel_with_a_gpu_open_is_named(proc: Proc) -> None:
    """A process in state D kept the memory of a GPU (microsoft/pai issue 3375)."""
    proc.thread()
    proc.devices("null", "nvidiactl", "nvidia1", "nvidia-uvm")
    assert proc.read(90) == []
    assert proc.read(30) == [
        StuckProcess(PID, 1000, "train (x) 7", Stuck.WAITING, 120.0, "kernel_clone", ["0000:43:00.0"], 77)
    ]


def test_a_process_whose_slow_file_system_answers_now_and_then_is_not_stuck(proc: Proc) -> None:
    proc.devices("nvidia1")
    for switches in range(20):
        proc.thread(switches=switches)
        assert proc.read(30) == []


def test_a_process_without_a_gpu_is_not_named(proc: Proc) -> None:
    proc.thread()
    proc.devices("null", "nvidiactl")
    assert proc.read(600) == []


@pytest.mark.parametrize("state", ["D", "R"])
def test_a_process_that_sigkill_does_not_end_is_named_after_half_a_minute(proc: Proc, state: str) -> None:
    proc.thread(state=state, pending=KILLED)
    proc.devices("nvidia1")
    assert proc.read() == []
    (found,) = proc.read(30)
    assert (found.why, found.seconds, found.gpus) == (Stuck.KILLED, 30.0, ["0000:43:00.0"])


def test_a_process_that_ends_and_has_closed_its_files_is_known_to_have_had_a_gpu(proc: Proc) -> None:
    proc.thread(state="S")
    proc.devices("nvidia1")
    assert proc.read(60) == []
    proc.thread(flags=ENDING)
    proc.devices()
    assert proc.read() == []
    (found,) = proc.read(60)
    assert (found.why, found.seconds, found.gpus) == (Stuck.KILLED, 60.0, ["0000:43:00.0"])


def test_a_gpu_that_a_process_opens_late_is_found(proc: Proc) -> None:
    proc.thread(state="S")
    proc.devices("null")
    proc.read(300)
    proc.devices("nvidia1")
    proc.read(300)
    proc.thread(flags=ENDING)
    proc.devices()
    assert [one.why for one in proc.read(60)] == [Stuck.KILLED]


def test_the_time_of_a_process_that_is_killed_while_it_waits_counts_from_its_kill(proc: Proc) -> None:
    proc.thread()
    proc.devices("nvidia1")
    proc.read(300)
    proc.thread(pending=KILLED)
    proc.read()
    assert [(one.why, one.seconds) for one in proc.read(60)] == [(Stuck.KILLED, 60.0)]


def test_a_thread_that_is_stuck_beside_others_names_its_process(proc: Proc) -> None:
    proc.thread(state="S", threads=2)
    proc.thread(PID + 1, threads=2)
    proc.devices("nvidia1")
    assert [(one.pid, one.why) for one in proc.read(120)] == [(PID, Stuck.WAITING)]


def test_threads_that_wait_while_a_core_is_written_are_not_stuck(proc: Proc) -> None:
    """Before Linux 5.16 they wait in exit_mm (state D, PF_EXITING). A SIGKILL meanwhile ends the dump."""
    proc.thread(state="R", dumping=True, threads=2)
    proc.thread(PID + 1, flags=ENDING, dumping=True, threads=2)
    proc.devices("nvidia1")
    assert proc.read(600) == []
    proc.thread(dumping=True, pending=KILLED, threads=2)
    assert proc.read() == []
    assert [(one.why, one.seconds) for one in proc.read(60)] == [(Stuck.KILLED, 60.0)]


def test_a_core_that_is_never_begun_because_a_thread_does_not_end_is_no_excuse(proc: Proc) -> None:
    proc.thread(state="D", dumping=True, threads=2)
    proc.thread(PID + 1, pending=KILLED, dumping=True, threads=2)
    proc.devices("nvidia1")
    proc.read()
    assert [one.why for one in proc.read(60)] == [Stuck.KILLED]


def test_a_zombie_whose_threads_live_keeps_its_gpu(proc: Proc) -> None:
    """Its first thread shows no files (apache/mxnet issue 4242)."""
    for name, number in (("zombie.stat", PID), ("zombie.thread.stat", PID + 1)):
        text = (RECORDED / name).read_text()
        proc.write(f"{PID}/task/{number}/stat", text)
        if number == PID:
            proc.write(f"{PID}/stat", text)
    proc.write(f"{PID}/status", (RECORDED / "zombie.status").read_text())
    proc.devices("nvidia1", number=PID + 1)
    (found,) = proc.read(120)
    assert (found.why, found.gpus, found.job_id) == (Stuck.ZOMBIE, ["0000:43:00.0"], None)


def test_a_plain_zombie_and_threads_of_the_kernel_keep_nothing(proc: Proc) -> None:
    proc.devices("nvidia1")
    proc.read(60)
    proc.thread(state="Z", flags=ENDING)
    assert proc.read(600) == []
    proc.thread(flags=OF_KERNEL)
    assert proc.read(600) == []


V2 = "0::/system.slice/slurmstepd.scope/"
V1 = "11:devices:/slurm/uid_1000/job_77/step_0/task_0\n4:freezer:/slurm/uid_1000/job_77/step_0\n0::/\n"


def _alive(
    proc: Proc,
    cgroup: str,
    stepds: dict[int, str],
    user: int = 1000,
    *,
    later_ticks: int = 0,
    devices: str = "nvidia1",
    parent: int = 1,
) -> list[StuckProcess]:
    """What four minutes of readings show of a process with a GPU that waits for its next work."""
    proc.ends(5000)
    for pid, of in stepds.items():
        proc.stepd(pid, of, later_ticks)
    proc.thread(state="S", parent=parent)
    proc.write(f"{PID}/cgroup", f"{cgroup}\n")
    status = f"{PID}/status"
    proc.write(status, (proc.folder / status).read_text().replace("Uid:\t1000\t", f"Uid:\t{user}\t"))
    proc.devices(*devices.split())
    return proc.read(240)


INFINITY = {33563: f"{V2}system"}


@pytest.mark.parametrize(
    ("cgroup", "stepds", "job"),
    [
        (f"{V2}job_77/step_0/user/task_0", INFINITY, 77),
        (f"{V2}job_77/step_0/user/task_0", INFINITY | {5000: f"{V2}job_78/step_batch/slurm"}, 77),
        (f"{V2}sEKNKTV3WPV500/step_0/user/task_0", INFINITY, None),
        (V1, {}, 77),
    ],
)
def test_a_process_that_its_job_has_left_behind_is_named(
    proc: Proc, cgroup: str, stepds: dict[int, str], job: int | None
) -> None:
    (found,) = _alive(proc, cgroup, stepds)
    assert (found.pid, found.user_id, found.why, found.job_id) == (PID, 1000, Stuck.LEFT, job)
    assert found.gpus == ["0000:43:00.0"] and found.seconds >= 120.0


@pytest.mark.parametrize(
    ("cgroup", "stepds", "user"),
    [
        (f"{V2}job_77/step_0/user/task_0", INFINITY | {5000: f"{V2}job_77/step_0/slurm"}, 1000),
        (f"{V2}job_77/step_0/user/task_0", INFINITY | {5000: f"{V2}job_77/step_extern/slurm"}, 1000),
        (f"{V2}sEKNKTV3WPV500/step_0/user/task_0", {5000: f"{V2}sEKNKTV3WPV500/step_0/slurm"}, 1000),
        (V1, {5000: "4:freezer:/slurm/uid_1000/job_77\n0::/"}, 1000),
        (f"{V2}job_77/step_0/user/task_0", {5000: "0::/system.slice/slurmd.service"}, 1000),
        (f"{V2}job_77/step_extern/user/task_0", INFINITY, 0),
        (f"{V2}job_77/step_extern/user/task_0", INFINITY, 998),
        ("0::/system.slice/nvidia-dcgm.service", INFINITY, 0),
        ("0::/system.slice/nvidia-persistenced.service", INFINITY, 998),
        ("0::/user.slice/user-1000.slice/session-3.scope", INFINITY, 1000),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/org.gnome.Shell@x11.service", INFINITY, 1000),
        ("0::/system.slice/docker-8ae5f5.scope", INFINITY, 1000),
        ("0::/kubepods.slice/job_77/x", INFINITY, 1000),
        ("0::/system.slice/slurmd.service", INFINITY, 1000),
    ],
    ids=[
        "its-job-runs", "ssh-into-its-job", "its-job-runs-26.05", "its-job-runs-v1", "a-slurmstepd-of-an-unknown-job",
        "root-in-a-job", "a-service-in-a-job", "dcgm", "persistenced", "logged-in", "x-server", "docker",
        "another-batch-system", "no-cgroup-of-jobs",
    ],
)  # fmt: skip
def test_programs_as_every_node_has_them_are_not_left_behind(
    proc: Proc, cgroup: str, stepds: dict[int, str], user: int
) -> None:
    assert _alive(proc, cgroup, stepds, user) == []


COMPUTES = "nvidiactl nvidia-uvm nvidia1"


@pytest.mark.parametrize(
    "cgroup",
    ["user.slice/user-1000.slice/session-3.scope", "system.slice/docker-8ae5f5.scope", "system.slice/slurmd.service"],
    ids=["logged-in", "docker", "no-cgroup-of-jobs"],
)
@pytest.mark.parametrize("stepds", [INFINITY, {5000: "0::/system.slice/slurmd.service"}])
def test_a_users_process_that_computes_outside_of_jobs_is_named(
    proc: Proc, cgroup: str, stepds: dict[int, str]
) -> None:
    (found,) = _alive(proc, f"0::/{cgroup}", stepds, devices=COMPUTES)
    assert (found.pid, found.user_id, found.why, found.job_id) == (PID, 1000, Stuck.OUTSIDE, None)
    assert found.gpus == ["0000:43:00.0"] and found.seconds >= 120.0


def test_services_and_what_a_running_step_has_started_are_not_outside_of_jobs(proc: Proc) -> None:
    slurmd = "0::/system.slice/slurmd.service"
    assert _alive(proc, "0::/system.slice/nvidia-dcgm.service", INFINITY, user=998, devices=COMPUTES) == []
    for user in (61184, 65519, 65534):  # DynamicUser= of systemd, and the overflow user
        assert _alive(proc, "0::/system.slice/exporter.service", INFINITY, user=user, devices=COMPUTES) == []
    proc.thread(4710, state="S", pid=4710, parent=5000)  # proctrack/linuxproc: no cgroups, and a shell between them
    assert _alive(proc, slurmd, {5000: slurmd}, devices=COMPUTES, parent=4710) == []


@pytest.mark.parametrize("daemons_user", [0, 1000])
def test_a_server_of_mps_counts_only_where_a_users_own_daemon_has_started_it(proc: Proc, daemons_user: int) -> None:
    """Root's daemon starts it as the user of the job, and ends it when another user's program comes."""
    proc.thread(4710, state="S", pid=4710)
    for pid, user in ((4710, daemons_user), (PID, 1000)):
        proc.thread(pid, state="S", pid=pid)
        for name, old, new in (("stat", "(train (x) 7)", "(nvidia-cuda-mps)"), ("status", "\t1000\t", f"\t{user}\t")):
            path = f"{pid}/{name}"
            proc.write(path, (proc.folder / path).read_text().replace(old, new))
        proc.write(f"{pid}/cgroup", "0::/system.slice/mps.service\n")
    proc.devices(*COMPUTES.split())
    assert [one.pid for one in proc.read(240)] == ([PID] if daemons_user else [])


def test_a_process_that_ends_soon_after_its_job_is_not_left_behind(proc: Proc) -> None:
    _alive(proc, f"{V2}job_77/step_0/user/task_0", {5000: f"{V2}job_77/step_0/slurm"})
    proc.ends(5000)
    assert proc.read(90) == []
    assert [one.why for one in proc.read(30)] == [Stuck.LEFT]


@pytest.mark.parametrize("folder", ["job_77", "sEKNKTV3WPV500"])
def test_a_process_older_than_each_slurmstepd_of_its_job_is_of_an_earlier_attempt(proc: Proc, folder: str) -> None:
    """A step's processes are younger than its slurmstepd, also where another step of the job begins later."""
    cgroup = f"{V2}{folder}/step_0/user/task_0"
    started = int((RECORDED / "waiting.stat").read_text().rpartition(")")[2].split()[19])
    proc.write("uptime", f"{started / os.sysconf('SC_CLK_TCK') + 5000.0} 0.00\n")
    (found,) = _alive(proc, cgroup, {5000: f"{V2}{folder}/step_0/slurm"}, later_ticks=100)
    assert (found.why, found.age_seconds) == (Stuck.LEFT, 5000.0)
    proc.stepd(5001, f"{V2}{folder}/step_extern/slurm")
    assert proc.read(240) == []


def test_a_later_process_of_the_same_number_is_another_one(proc: Proc) -> None:
    proc.thread()
    proc.devices("nvidia1")
    assert proc.read(120)
    started = (RECORDED / "waiting.stat").read_text().rpartition(")")[2].split()[19]
    path = f"{PID}/stat"
    proc.write(path, (proc.folder / path).read_text().replace(f" {started} ", " 99 "))
    assert proc.read() == []


def test_a_device_whose_place_is_not_known_is_named_by_its_file(proc: Proc) -> None:
    proc.thread()
    proc.devices("nvidia3")
    assert [one.gpus for one in proc.read(120)] == [["nvidia3"]]


def test_no_more_are_reported_than_a_report_may_have(proc: Proc) -> None:
    for pid in range(5000, 5000 + STUCK_PROCESSES_MAX + 4):
        proc.thread(pid, pid=pid)
        proc.devices("nvidia1", number=pid, pid=pid)
    assert len(proc.read(120)) == STUCK_PROCESSES_MAX
