"""One site with a gang of each kind; the same fault happens to each of them at about the same moment.

Belongs here: starting it, breaking it, and watching what becomes of the gangs. Must not: which cells there are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance import gang
from tests.acceptance.launcher_job import OTHER_PYTHON
from tests.bench.recovery.sides import FABRIC_ADDRESS, RENDEZVOUS
from tests.notify.site import HttpReceiver, http_receiver, webhook
from tests.promise import rank
from tests.promise.cells import JOBS, Batch, Cell
from tests.testbed.configuration import free_ports, node_names
from tests.testbed.processes import read_process
from tests.testbed.site import RESEARCHER, Site
from understudy_controlplane.fleet.slurm import ENDED_STATES

GANG = 2
READY_SECONDS = 120.0
SETTLED_SECONDS = 5.0
LOOK_SECONDS = 0.5
STATE_LOOKS = 10
"""So many looks for one at the state of a job in Slurm."""
FRESH_SECONDS = 5.0
"""A rank that works has finished a step since."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    # A gang of each kind loses a node within seconds, in a small fleet: for a site that would be one cause.
    "guards": {"breaker_share_max": 1.0, "domain_share_max": 1.0},
    # Unlike in other tests, the time after which silence alone proves a death is that of a site.
    "silence": {"mass_share": 1.0},
}

Say = Callable[[str], None]


@dataclass
class Gang:
    kind: str
    home: Path
    job: int = 0
    fault_at: float = 0.0
    back_seconds: float | None = None
    notified_seconds: float | None = None
    notified: str = ""
    state: str = "RUNNING"
    """Slurm's, as it was looked at last."""
    starts_before: list[int] = field(default_factory=list)

    def starts(self, number: int) -> list[dict[str, Any]]:
        file = self.home / f"starts-{number}"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def started_again(self, number: int) -> bool:
        return len(self.starts(number)) > self.starts_before[number]

    def works_since(self, at: float) -> bool:
        """Every rank has finished a step that began after that."""
        return all(self._stepped_at(number) > at + rank.STEP_SECONDS for number in range(GANG))

    @property
    def goes_on(self) -> bool:
        """It never stopped."""
        stopped = self.back_seconds is not None or any(self.started_again(number) for number in range(GANG))
        return not stopped and self.works_since(time.time() - FRESH_SECONDS)

    def _stepped_at(self, number: int) -> float:
        file = self.home / f"steps-{number}"
        return float(file.read_text()) if file.exists() else 0.0

    @property
    def node(self) -> str:
        """Node of the fault: the last rank's, so that the batch script's node is another one."""
        return str(self.starts(GANG - 1)[-1]["node"])


def power_off(site: Site, one: Gang) -> float:
    return site.power_off(one.node)


def kill_agent(site: Site, one: Gang) -> float:
    return site.kill_agent(one.node)


def kill_slurmd(site: Site, one: Gang) -> float:
    at = time.time()
    for pid in site.cluster.node_pids(one.node):
        process = read_process(pid)
        if process is not None and process.name == "slurmd":
            os.kill(pid, signal.SIGKILL)
    return at


def xid(site: Site, one: Gang) -> float:
    return site.nodes[one.node].fail_gpu()


def kill_rank(site: Site, one: Gang) -> float:
    at = time.time()
    os.kill(int(one.starts(GANG - 1)[-1]["pid"]), signal.SIGKILL)
    return at


INJECT: Mapping[str, Callable[[Site, Gang], float]] = {
    "node power off": power_off,
    "agent dead": kill_agent,
    "slurmd dead": kill_slurmd,
    "Xid": xid,
    "rank killed": kill_rank,
}


def measure_alone(batch: Batch, jobs: Sequence[str], ends_at: float, logs: Path) -> list[Cell] | str | None:
    """Measures in a process that does nothing else. None: it was too late to begin. Text: why nothing was measured.
    What is needed to find the cause is kept below `logs` if a gang did not come back and no person was notified.
    """
    if time.monotonic() > ends_at:
        return None
    what = f"{batch.fault}, SlurmdTimeout {batch.slurmd_timeout} s, pool: {batch.pool}"
    print(f"{what}: begun", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="up-"))  # short: sockets lie below it
    try:
        cells = measure(batch, jobs, directory, lambda line: print(f"{what}: {line.strip()}", flush=True))
        if any(one.is_hole for one in cells):
            print(f"{what}: neither back nor notified: see {logs}", flush=True)
            for name in ("log", "home"):
                shutil.copytree(directory / name, logs / what / name, dirs_exist_ok=True)
    except Exception as error:  # noqa: BLE001 - a site that fails stops no other
        print(f"{what}: not measured: {error}", flush=True)
        return str(error) or type(error).__name__
    finally:
        for left in (directory, directory.with_name(f"{directory.name}-keys")):
            shutil.rmtree(left, ignore_errors=True)
    return cells


def measure(batch: Batch, jobs: Sequence[str], directory: Path, say: Say) -> list[Cell]:
    """Raises ClusterError where the gangs do not even begin to work."""
    spares = len(jobs) if batch.pool == "spare" else 0
    with http_receiver() as receiver:
        directory.mkdir(parents=True, exist_ok=True)
        keys = directory.with_name(f"{directory.name}-keys")
        keys.mkdir(exist_ok=True)
        settings = {**SETTINGS, "notify": {"receivers": {"people": webhook(keys, receiver)}}}
        lines = [f"SlurmdTimeout={batch.slurmd_timeout}", "SchedulerParameters=batch_sched_delay=0"]
        names = node_names(GANG * len(jobs))
        if not spares:  # a gang that stops must leave no nodes to the others
            lines += [
                f"PartitionName={_slug(kind)} Nodes={','.join(names[GANG * place : GANG * (place + 1)])} "
                "MaxTime=INFINITE OverSubscribe=EXCLUSIVE State=UP"
                for place, kind in enumerate(jobs)
            ]
        with Site(
            directory, GANG * len(jobs) + spares, spares, "act", settings=settings, slurm_conf_lines=lines
        ) as site:
            gang.start_site(site)
            gangs = [_submit(site, kind, "train" if spares else _slug(kind)) for kind in jobs]
            site.wait_for(lambda: all(one.works_since(1.0) for one in gangs), READY_SECONDS, "all gangs work")
            time.sleep(SETTLED_SECONDS)
            _break(site, gangs, batch.fault)
            return _watch(site, gangs, batch, receiver, say)


def _break(site: Site, gangs: Sequence[Gang], fault: str) -> None:
    for one in gangs:
        one.starts_before = [len(one.starts(number)) for number in range(GANG)]
        one.fault_at = INJECT[fault](site, one)


def _watch(site: Site, gangs: Sequence[Gang], batch: Batch, receiver: HttpReceiver, say: Say) -> list[Cell]:
    began = time.time()
    loads: list[float] = []
    while (waited := time.time() - began) < batch.give_up_seconds:
        loads.append(os.getloadavg()[0])
        for one in gangs:
            _look(one, receiver, say)
            if len(loads) % STATE_LOOKS == 0 and not _is_settled(one, batch, waited):
                one.state = gang.state(site, one.job)
        if all(_is_settled(one, batch, waited) for one in gangs):
            break
        time.sleep(LOOK_SECONDS)
    for one in gangs:
        if one.goes_on:
            one.back_seconds = 0.0
            say(f"    {one.kind}: went on")
    return [
        Cell(
            one.kind,
            batch.fault,
            batch.slurmd_timeout,
            batch.pool,
            _round(one.back_seconds),
            _round(one.notified_seconds),
            one.notified,
            round(waited, 1),
            one.state,
            round(statistics.fmean(loads), 1),
        )
        for one in gangs
    ]


def _is_settled(one: Gang, batch: Batch, waited: float) -> bool:
    """Nothing else is to come. Without a spare a person is notified, and the gang waits."""
    if one.back_seconds is not None or (one.notified and batch.pool == "none") or one.state in ENDED_STATES:
        return True
    return waited > batch.moves_seconds and (bool(one.notified) or one.goes_on)


def _look(one: Gang, receiver: HttpReceiver, say: Say) -> None:
    now = time.time()
    if not one.notified:
        named = re.compile(rf"\bjob {one.job}\b")
        words = next((text for text in map(json.dumps, receiver.got) if named.search(text)), "")
        if words:
            one.notified_seconds, one.notified = now - one.fault_at, words[:500]
            say(f"    {one.kind}: a person was notified after {one.notified_seconds:.0f} s")
    if one.back_seconds is not None:
        return
    again = all(one.started_again(number) for number in range(GANG))
    if again and one.works_since(max(one.starts(number)[-1]["at"] for number in range(GANG))):
        one.back_seconds = now - one.fault_at
        say(f"    {one.kind}: back after {one.back_seconds:.1f} s")


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


# -- jobs ------------------------------------------------------------------------------------------------------------


def _slug(kind: str) -> str:
    return kind.replace(" ", "-")


def _submit(site: Site, kind: str, partition: str) -> Gang:
    home = site.cluster.user_directory(RESEARCHER) / _slug(kind)
    home.mkdir()
    shutil.copy(rank.__file__, home / "rank.py")
    home.chmod(0o777)
    script = home / "job.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --open-mode=append\n#SBATCH --output={home}/output\n{_script(site, kind, home)}"
    )
    options = [f"--nodes={GANG}", "--ntasks-per-node=1", "--gres=gpu:8", "--requeue", "--comment=understudy"]
    return Gang(kind, home, site.submit(script, options=[*options, f"--partition={partition}"]))


def _script(site: Site, kind: str, home: Path) -> str:
    program = f"{home}/rank.py {home}"
    match kind:
        case "plain srun":
            return _documented(f"{program} plain")
        case "torchrun":
            return _torchrun(site, home, program)
        case "hook":
            return _documented(f"{program} hook")
        case "hook with collectives":
            return _documented(f"{program} collectives")
        case "understudy run":
            site.copy_launcher()
            words = f"--nodes {GANG} --procs-per-node 1 --events {home}/events"
            command = f"{OTHER_PYTHON} {program} collectives"
            return f"#SBATCH --no-kill\nexec {OTHER_PYTHON} -P -m understudy_launcher {words} -- {command}\n"
        case _:
            raise ValueError(f"no such job: {kind}; there are {', '.join(JOBS)}")


def _documented(program: str) -> str:
    """Program of docs/quickstart.md."""
    return f"srun --kill-on-bad-exit=1 {OTHER_PYTHON} {program} && exit 0\nsleep 60\nexit 1\n"


def _torchrun(site: Site, home: Path, program: str) -> str:
    """Start that its documentation names on several nodes, with restarts of its own."""
    (home / "agent.sh").write_text(
        f"#!/bin/bash\nexport OMP_NUM_THREADS=1\n{FABRIC_ADDRESS}"
        'if [ "$SLURM_NODEID" = 0 ]; then host=is_host=true; else host=is_host=false; fi\n'
        f"exec {site.job_python()} -m torch.distributed.run --nnodes={GANG} --nproc-per-node=1 --max-restarts=3 "
        f"--rdzv-backend=c10d --rdzv-endpoint=$head:{free_ports(1)[0]} --rdzv-id=gang "
        f"--local-addr=$address --rdzv-conf=$host,{RENDEZVOUS} {program} plain\n"
    )
    return f"{FABRIC_ADDRESS}export head=$address\nsrun bash {home}/agent.sh\n"
