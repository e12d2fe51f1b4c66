"""Who runs the job: each side's batch script, with the best known settings for it.

Belongs here: how a side is started, when it is ready for a fault, and what in its output says that it has noticed one.
Must not: what happens to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.recovery.faults import DEAD_NODE, FAULTS, KILLED_NODE
from tests.testbed.configuration import IMPATIENT_SCHEDULER, NO_SCHEDULER_DELAY

GANG = 6
SPARES = 2
HANG_SECONDS = 5.0
"""Time without a step after which a hang is one, for every side that has such a setting."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a side needs to know of the job."""

    python: Path
    program: Path
    home: Path
    nvrx: Path
    """A Python with NVRx."""
    fault: str
    port: int
    lib: Path
    """Folder of a library NVML that shows the testbed's GPUs."""
    nodes_directory: Path

    def command(self, *words: str, python: Path | None = None) -> str:
        return " ".join([str(python or self.python), str(self.program), str(self.home), *words])


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    script: Callable[[Job], str]
    nodes: int
    notices: re.Pattern[str]
    """The first line of its output, after the fault, that shows that it knows."""
    sbatch: Sequence[str] = ()
    slurm: tuple[str, ...] = ()
    """Lines for slurm.conf."""
    watched: bool = False
    """True with the control plane and agents."""
    pool: int = 0
    """Nodes that the control plane holds as spares, outside the job's allocation."""
    standbys: int = 0
    """So many have to be ready before anything breaks..."""
    warm: bool = False
    """... with their imports done."""
    faults: Sequence[str] = tuple(FAULTS)
    runs: int = 1
    """Unless another number is asked for."""
    notices_within_seconds: Mapping[str, float] = field(default_factory=dict)
    """Fault → after what time it should know of it, by its own documents: then it is given up."""


def understudy(*options: str, words: Sequence[str] = ()) -> Callable[[Job], str]:
    def script(job: Job) -> str:
        launcher = [
            f"exec {job.python} -P -m understudy_launcher --nodes {GANG} --procs-per-node 1 --rearm-seconds 0.5"
        ]
        launcher += ["--events events --progress-file steps", f"--hang-seconds {HANG_SECONDS:g}"]
        launcher += [*options, "--", job.command(*words)]
        return f"#SBATCH --no-kill\n{' '.join(launcher)}\n"

    return script


def plain_slurm(job: Job) -> str:
    """Script as most are. Slurm requeues the job only if it thinks that the node failed."""
    return f"srun {job.command()}\nstatus=$?\necho srun ended with $status\nexit $status\n"


def plain_slurm_tuned(job: Job) -> str:
    """The first failed rank ends the step, and the script asks for a requeue whatever the reason was."""
    return (
        f"srun --kill-on-bad-exit=1 --wait=1 {job.command()} && exit 0\n"
        "echo srun ended with $?\nscontrol requeue $SLURM_JOB_ID\nsleep 600\n"
    )


def pool(job: Job) -> str:
    """The gang has no spares of its own: the control plane requeues the job with a spare of its pool. When the first
    rank has failed, the script gives it the time.
    """
    return f"srun --kill-on-bad-exit=1 --wait=1 {job.command()} && exit 0\necho srun ended with $?\nsleep 60\nexit 1\n"


def torchrun(job: Job) -> str:
    """One agent on each node of the gang. More of them would be spares; but with torch 2.13 no agent comes out of a
    rendezvous when the one before had spares.
    """
    agent = [f"{job.python} -m torch.distributed.run --nnodes={GANG}:{GANG} --nproc-per-node=1 --max-restarts=100"]
    agent += ["--monitor-interval=0.1 --rdzv-backend=c10d", f"--rdzv-endpoint=$head:{job.port} --rdzv-id=gang"]
    agent += [f"--local-addr=$address --rdzv-conf=$host,{RENDEZVOUS}", str(job.program), str(job.home)]
    return _elastic(job, " ".join(agent))


def nvrx(job: Job) -> str:
    """NVRx' launcher, with spare nodes, its health check of the GPUs, and heartbeats where it is to notice a hang."""
    beats = job.fault == "hang"
    agent = [f"{job.nvrx.parent}/ft_launcher --nnodes={GANG}:{GANG} --nproc-per-node=1 --max-restarts=100"]
    agent += ["--monitor-interval=0.1 --rdzv-backend=c10d", f"--rdzv-endpoint=$head:{job.port} --rdzv-id=gang"]
    agent += [f"--local-addr=$address --rdzv-conf=$host,{RENDEZVOUS}", "--ft-restart-policy=any-failed"]
    agent += ["--ft-workload-check-interval=0.5 --ft-node-health-check-interval=1 --ft-enable-nic-monitor=False"]
    agent += ["--ft-initial-rank-heartbeat-timeout=120", f"--ft-rank-heartbeat-timeout={HANG_SECONDS:g}"]
    agent += [str(job.program), str(job.home), *(["--heartbeat"] if beats else [])]
    return _elastic(job, " ".join(agent))


def _elastic(job: Job, agent: str) -> str:
    """srun starts the agents once; a node that dies does not take them with it."""
    (job.home / "agent.sh").write_text(
        "#!/bin/bash\n"
        f"export LD_LIBRARY_PATH={job.lib} FAKE_NVML_STATE={job.nodes_directory}/$SLURMD_NODENAME/gpus\n"
        "export OMP_NUM_THREADS=1\n"
        f"{FABRIC_ADDRESS}"
        # Nodes with one address need the host of the rendezvous to be set: it could be the node that will die.
        'if [ "$SLURM_NODEID" = 0 ]; then host=is_host=true; else host=is_host=false; fi\n'
        f"exec {agent}\n"
    )
    head = f"{FABRIC_ADDRESS}export head=$address\n"
    return f"#SBATCH --no-kill\n{head}srun --no-kill --kill-on-bad-exit=0 --wait=0 bash {job.home}/agent.sh\n"


FABRIC_ADDRESS = (
    "address=$(ip -4 -o address show dev ib0 2>/dev/null | sed 's|.* inet ||; s|/.*||')\n"
    "address=${address:-127.0.0.1}\n"
)
"""The batch script runs on the node of SLURM_NODEID 0."""

RENDEZVOUS = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"
"""Their defaults (5 s, 3 attempts, 30 s) are slower."""

_SRUN = re.compile(r"srun ended with|DUE TO|Killed|CANCELLED AT")
_ELASTIC = re.compile(r"failed \(exitcode|[Rr]estart|unhealthy|[Uu]nhealthy|terminat", re.IGNORECASE)
_NEVER = re.compile(r"(?!)")

TUNED = (
    "SlurmdTimeout=5",
    "ReturnToService=2",
    "KillWait=1",
    "UnkillableStepTimeout=5",
    "MessageTimeout=2",
    "HealthCheckInterval=1",
    IMPATIENT_SCHEDULER,
)
"""And a HealthCheckProgram that drains a node whose GPU is lost, and credentials that live for 5 s: see `tuned`."""


def tuned(munge_socket: Path, health_check: Path) -> tuple[str, ...]:
    # A requeued job waits as long as a credential lives.
    return (*TUNED, f"AuthInfo=socket={munge_socket},cred_expire=5", f"HealthCheckProgram={health_check}")


SLURMD_TIMEOUT = {KILLED_NODE: 330.0, DEAD_NODE: 330.0}
"""SlurmdTimeout is 300 s by default. Keep-alives and heartbeats of the other sides take less than half a minute as they
are set here, and where nothing looks (a hung rank without heartbeats, a straggler) there is no such time.
"""

MANAGED = ("--requeue", "--comment=understudy")

WARM_WORDS = ("--import", "torch")

SIDES: Sequence[Side] = (
    Side("understudy", understudy(), GANG + SPARES, _NEVER, MANAGED, watched=True, standbys=8, runs=3),
    Side(
        "understudy_in_process",
        understudy("--in-process", words=("--restartable",)),
        GANG + SPARES,
        _NEVER,
        MANAGED,
        watched=True,
        faults=("xid", KILLED_NODE),
        runs=3,
    ),
    Side("nvrx", nvrx, GANG + SPARES, _ELASTIC),
    Side("torchrun", torchrun, GANG, _ELASTIC),
    Side("plain_slurm", plain_slurm, GANG, _SRUN, ("--requeue",), notices_within_seconds=SLURMD_TIMEOUT),
    Side("plain_slurm_tuned", plain_slurm_tuned, GANG, _SRUN, ("--requeue",), slurm=TUNED),
)

POOL: Sequence[Side] = tuple(
    Side(
        name,
        pool,
        GANG,
        _SRUN,
        MANAGED,
        slurm=slurm,
        watched=True,
        pool=SPARES,
        faults=("xid", KILLED_NODE, DEAD_NODE),
    )
    for name, slurm in (("understudy_pool", ()), ("understudy_pool_tuned", (NO_SCHEDULER_DELAY,)))
)
"""Slurm's scheduler moves it, with its defaults and as `understudy doctor` recommends."""

IMPORTING: Sequence[Side] = (
    Side(
        "understudy_cold",
        understudy(words=WARM_WORDS),
        GANG + SPARES,
        _NEVER,
        MANAGED,
        watched=True,
        standbys=8,
        faults=("xid",),
    ),
    Side(
        "understudy_warm",
        understudy("--preload", "torch", words=WARM_WORDS),
        GANG + SPARES,
        _NEVER,
        MANAGED,
        watched=True,
        standbys=8,
        warm=True,
        faults=("xid",),
    ),
)
"""The same job, importing torch: what standbys with their imports done are worth."""
