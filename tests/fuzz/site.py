"""A whole site to be attacked: the real service on SQLite or PostgreSQL, real agents, a real keeper, and `scontrol` as
a program that prints what real ones printed.

n1 is an attacker's, as root. A user's job 7 has n1 and n2. Job 8 of another user has n3 and n4, and the kernel log of
n5 holds names that users chose: these three are to come to no harm. Job 9 of root shares n2, and its rank is answered.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests import PYTHON_PATH
from tests import builders as b
from tests.bench.slurm_text import DATA
from tests.keeper.site import Keepers
from tests.testbed.configuration import free_ports
from tests.tokens import secret, with_tokens
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_controlplane.fleet.identity import Role

NODES = ("n1", "n2", "n3", "n4", "n5")
ATTACKER, OTHER = 1000, 1001
"""Users of the jobs 7 and 8."""

SCONTROL = """#!/bin/sh
cd {folder} || exit 1
case " $* " in
*" show config "*) cat config ;;
*" show nodes "*) cat nodes ;;
*" show node "*)
    for names; do :; done
    missing=0
    for name in $({python} -S -c "
import re, sys
for kind, text in re.findall('(n)[[]?([0-9,-]+)', sys.argv[1]):
    for first, _, last in (one.partition('-') for one in text.split(',') if one):
        print(*(kind + str(at) for at in range(int(first), int(last or first) + 1)))
" "$names"); do
        cat "node.$name" 2>/dev/null || {{ echo "Node $name not found"; missing=1; }}
    done
    exit $missing ;;
*" show partition "*) echo "PartitionName=train Nodes=n[1-5] State=UP" ;;
*" show jobs "*) cat jobs ;;
*" show job "*)
    for id; do :; done
    grep -a "^JobId=$id " jobs || {{ echo "Invalid job id specified" >&2; exit 1; }} ;;
*" show step "*) for id; do :; done; echo "Job step $id. not found" >&2; exit 1 ;;
*" show "*) : ;;
*) echo "$*" >>effects ;;
esac
"""
SQUEUE = "#!/bin/sh\nprintf '7\\n8\\n9\\n'\n"
OTHERS = '#!/bin/sh\ncd {folder} && echo "$0 $*" >>effects\n'
SLURM_CONFIG = f"""Configuration data as of 2026-11-21T12:38:49
BOOT_TIME               = 2026-11-21T12:38:29
ClusterName             = {b.CLUSTER}
SLURM_VERSION           = 22.05.8
SlurmdTimeout           = 300 sec
MinJobAge               = 300 sec
"""
SETTINGS = """cluster = "{cluster}"
mode = "act"
[server]
port = {port}
database = "{database}"
munge_socket = "{folder}/munge/socket"
[slurm]
gateway = "cli"
scontrol = "{folder}/scontrol"
poll_interval_seconds = 0.5
[spares]
count = 0
[silence]
dead_unconfirmed_seconds = 6
"""
AGENT = """cluster = "{cluster}"
node = "{node}"
control_plane_urls = ["http://127.0.0.1:{port}"]
token_file = "{folder}/{node}.token"
kernel_log = "{folder}/{node}.kmsg"
socket = "{folder}/{node}.agent"
run_directory = "{folder}/{node}.run"
[nvml]
enabled = false
[host]
enabled = false
[keeper]
socket = "{folder}/{node}.sock"
"""


class Site:
    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.port, self.slurmds_port = free_ports(2)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keepers = Keepers(folder)
        self._begun = ExitStack()

    def start(self) -> None:
        folder = self.folder
        for program, text in (("scontrol", SCONTROL), ("squeue", SQUEUE), ("sbatch", OTHERS), ("scancel", OTHERS)):
            (folder / program).write_text(
                text.format(folder=folder, python=sys.executable) if text is not SQUEUE else text
            )
            (folder / program).chmod(0o755)
        (folder / "config").write_text(SLURM_CONFIG)
        (folder / "effects").touch()
        self.print_slurm("nodes", self.nodes_text())
        self.print_slurm("jobs", self.jobs_text())
        settings = {"cluster": b.CLUSTER, "port": self.port, "folder": folder}
        (folder / "site.toml").write_text(SETTINGS.format(**settings, database=self.database))
        for node in ("n2", "n5"):
            (folder / f"{node}.token").write_text(secret(Role.NODE, node))
            (folder / f"{node}.kmsg").touch()
            (folder / f"agent-{node}.toml").write_text(AGENT.format(**settings, node=node))
        with_tokens(self.database, NODES)
        self._begun.enter_context(slurmds(self.slurmds_port))
        self._start("serve", "understudy_controlplane", "serve", "--config", f"{folder}/site.toml")
        wait_until(self._is_ready, "the control plane is ready")
        self.keepers.start("n2")
        for node in ("n2", "n5"):
            self._start(f"agent-{node}", "understudy_agent", "--config", f"{folder}/agent-{node}.toml")
            wait_until((folder / f"{node}.agent").is_socket, f"the agent of {node} listens")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", *command],
                env={**os.environ, "PYTHONPATH": PYTHON_PATH},
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=PATIENCE_SECONDS):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(PATIENCE_SECONDS)
        self.keepers.close()
        self._begun.close()

    def print_slurm(self, what: str, text: str) -> None:
        """Prints it from now on. A reader sees all of it, or all that was there before."""
        if what == "nodes":
            rest = text
            for node in reversed(NODES[1:]):  # what comes before n2's own record is n1's
                rest, start, record = rest.rpartition(f"\nNodeName={node} ")
                self.print_slurm(f"node.{node}", f"{start[1:]}{record}\n")
            self.print_slurm(f"node.{NODES[0]}", f"{rest}\n")
        new = self.folder / f"{what}.new"
        new.write_bytes(text.encode("utf-8", "surrogateescape"))
        new.replace(self.folder / what)

    def nodes_text(self, of_n1: dict[str, str] | None = None) -> str:
        """`of_n1`: what root of n1 has its slurmd report."""
        recorded = _record("nodes-22.05.txt", "NodeName=n4 ")
        texts = []
        for node in NODES:
            values = {"NodeName": node, "Port": str(self.slurmds_port), "State": "ALLOCATED"}
            values |= (of_n1 or {}) if node == "n1" else {}
            texts.append(_with(recorded, values))
        return "\n".join(texts) + "\n"

    def jobs_text(self, of_user: dict[str, str] | None = None) -> str:
        """`of_user`: what the owner of job 7 writes."""
        recorded = re.sub(r" Comment=x (?= *UserId)", " ", _record("jobs-22.05.txt", "JobId=1 "))
        recorded = re.sub(r" AdminComment=.*? StdErr=", " Comment=understudy StdErr=", recorded)
        began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self._began_at))
        recorded = re.sub(r"(SubmitTime|EligibleTime|AccrueTime|StartTime|LastSchedEval)=\S+", rf"\1={began}", recorded)
        seven = {"UserId": f"attacker({ATTACKER})", "NodeList": "n[1-2]", "BatchHost": "n1", **(of_user or {})}
        eight = {"JobId": "8", "UserId": f"other({OTHER})", "NodeList": "n[3-4]", "BatchHost": "n3"}
        nine = {"JobId": "9", "UserId": "root(0)", "NodeList": "n2", "BatchHost": "n2", "NumNodes": "1"}
        jobs = ({"JobId": "7", "JobName": "gang", **seven}, eight, nine)
        return "".join(f"{_with(recorded, job)}\n" for job in jobs)

    _began_at = time.time() - 600


@contextmanager
def slurmds(port: int) -> Iterator[None]:
    """Each ends a connection that sends nothing, as a slurmd that lives."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        serving.join()


def _with(record: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        pattern = r"(JobName)=.*?(?= +UserId=)" if key == "JobName" else rf"(?<!\S)({key})=.*?(?=\s+[A-Z]\S*=|$)"
        record = re.sub(pattern, lambda found, value=value: f"{found[1]}={value}", record, count=1)  # type: ignore[misc]
    return record


def _record(file: str, start: str) -> str:
    return next(line for line in (DATA / file).read_text(encoding="utf-8").split("\n") if line.startswith(start))
