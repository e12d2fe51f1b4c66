"""A real Slurm cluster of many nodes on this machine: munged, slurmctld, and a slurmd for each node.

Belongs here: starting, stopping and breaking it, and running Slurm commands in it. Must not: anything of the
control plane's. It shares nothing with another Slurm or MUNGE here: own key, own ports, all files in one directory.
Needs root, and Debian's packages munge, slurmctld, slurmd and slurm-client.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testbed import configuration, installation, network
from tests.testbed.configuration import Layout
from tests.testbed.installation import NATIVE, Installation
from tests.testbed.network import HOST, Addresses, NetworkName, Switch
from tests.testbed.processes import (
    MARK,
    Process,
    all_processes,
    descendants,
    environment_of,
    holds_open,
    is_running,
    kill_all,
    read_process,
    signal_process,
    sweep,
)
from tests.testbed.supervisor import Supervisor

_PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "sbatch", "setpriv")
_SOCKET_PATH_BYTES_MAX = 107  # unix(7)
CLUSTER_NAME = "testbed"
_CONTROLLER_END_SECONDS = 20.0
_LOG_TAIL_LINES = 15
_NODE_LOG_TAIL_LINES = 3
PATIENCE = 3
"""What a test allows for a wait, times this: a slow or busy machine fails no test. Times that are promised are
measured, not waited for.
"""


class ClusterError(Exception):
    """The testbed cluster did not do what it should; the message carries the ends of its logs."""


class SlurmCluster:
    """A Slurm cluster in `directory`, which is made where it is missing. Use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 8,
        gpus_per_node: int = 8,
        extra_lines: Sequence[str] = (),
        *,
        slurm: Installation = NATIVE,
        racks: Mapping[str, int] | None = None,
        leaf_switches: Mapping[str, tuple[str, ...]] | None = None,
        blocks: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Each node is a machine: it has a network namespace with an address and a host name of its own, so that its
        cable can be pulled. So are the "controller" (of slurmctld), the "login" node (of users' commands) and the
        "database" (`tests.testbed.postgres`). Where this host allows no namespaces, all share its network.
        """
        ports = configuration.free_ports(nodes + 1)
        addresses, self._reserved = (None, -1) if network.why_impossible() else network.reserve()
        self.slurm = slurm
        self.layout = Layout(
            directory=directory.resolve(),
            name=CLUSTER_NAME,
            node_names=configuration.node_names(nodes),
            gpus_per_node=gpus_per_node,
            controller_port=ports[0],
            node_ports=ports[1:],
            extra_lines=(*slurm.settings, *extra_lines),
            racks=dict(racks or {}),
            leaf_switches=dict(leaf_switches or {}),
            blocks=dict(blocks or {}),
            has_topology_yaml=slurm.slurm >= "25.05",
            addresses=addresses,
        )
        self._supervisor: Supervisor | None = None
        self._munged: Process | None = None
        self._namespace: Process | None = None  # where another version's programs run
        self._daemons: dict[str, Process] = {}  # slurmctld of the controller, slurmd of each node
        self._switch: Switch | None = None
        self._machines: dict[str, Process] = {}  # each holds the namespaces of its machine

    @property
    def directory(self) -> Path:
        return self.layout.directory

    @property
    def node_names(self) -> tuple[str, ...]:
        return self.layout.node_names

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to use this cluster, and to be found by `sweep`."""
        path = f"{self._clients}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        # Slurm's step daemons write their title over the front of their environment: the mark stands last.
        return {"PATH": path, **libraries, "SLURM_CONF": str(self.layout.slurm_conf), MARK: str(self.directory)}

    @property
    def pyslurm_python(self) -> Path:
        """A program that is a Python which can import pyslurm, where this Slurm's installation has one."""
        return self._clients / "python"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all daemons and return once every node is idle. What an earlier run left here is ended first."""
        self._refuse_what_cannot_work()
        sweep(self.directory)
        self._lay_out()
        self._supervisor = Supervisor(self.directory)
        try:
            self.start_munge()
            if self.slurm.root is not None:
                self._open_namespace(self.slurm.root)
            if self.layout.addresses:
                self._build_network(self.layout.addresses)
            self.start_controller()
            for node in self.node_names:
                self.start_node(node)
            self.wait_until_idle(timeout_seconds=30)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the cluster, jobs included, and see that none is left. May be called again."""
        supervisor, self._supervisor = self._supervisor, None
        self._daemons.clear()
        self._machines.clear()
        self._switch = None
        self._munged = self._namespace = None
        if supervisor is not None:
            supervisor.stop()
        sweep(self.directory)
        if self._reserved >= 0:
            os.close(self._reserved)
            self._reserved = -1

    def start_node(self, node: str, rebooted: bool = False) -> None:
        """Start the slurmd of a node that has none; it may claim that the node was rebooted."""
        if node in self._daemons and is_running(self._daemons[node]):
            raise ClusterError(f"the slurmd of {node} runs already (process {self._daemons[node].pid})")
        log = self.layout.log_directory / f"slurmd.{node}.out"
        arguments = ["slurmd", "-D", "-N", node, *(["-b"] if rebooted else [])]
        self._daemons[node] = self._spawn_slurm(arguments, log, node)

    def start_controller(self) -> None:
        """Start slurmctld, also again after `stop_controller`: it finds its state as it left it."""
        log = self.layout.log_directory / "slurmctld.out"
        self._daemons["controller"] = self._spawn_slurm(["slurmctld", "-D"], log, "controller")

    def stop_controller(self, crash: bool = False) -> None:
        """End slurmctld as its service manager would, or as a crash would. Jobs go on.

        It writes its state every few seconds and when it gets SIGTERM: a crash loses what came after the last time.
        """
        controller = self._daemons.pop("controller", None)
        if controller is None:
            raise ClusterError("slurmctld does not run")
        if not crash:
            signal_process(controller, signal.SIGTERM)
            deadline = time.monotonic() + _CONTROLLER_END_SECONDS
            while is_running(controller) and time.monotonic() < deadline:
                time.sleep(0.05)
        kill_all(lambda: [controller] if is_running(controller) else [])

    def stop_munge(self) -> None:
        munged, self._munged = self._munged, None
        if munged is None:
            raise ClusterError("munged does not run")
        kill_all(lambda: [munged] if is_running(munged) else [])

    def node_pids(self, node: str) -> list[int]:
        """The node's slurmd, step daemons and tasks, and what else says in its environment to be of this node."""
        return [process.pid for process in self._node_processes(node)]

    def kill_node(self, node: str) -> list[int]:
        """SIGKILL all that runs on the node, as a power failure would; return the processes hit.

        Slurm is not notified. A program started elsewhere counts as the node's when its environment holds both
        this cluster's mark (see `environment`) and SLURMD_NODENAME=<node>.
        """
        if node not in self.node_names:
            raise ClusterError(f"no node {node} in this cluster; it has {', '.join(self.node_names)}")
        return [process.pid for process in kill_all(lambda: self._node_processes(node))]

    # -- what only machines can suffer -------------------------------------------------------------------------

    @property
    def has_machines(self) -> bool:
        """True if each node has a network of its own."""
        return self.layout.addresses is not None

    def power_off(self, node: str) -> list[int]:
        """Does as `kill_node`, but no connection is reset: there is only silence."""
        self.unplug(node)
        return self.kill_node(node)

    def power_on(self, node: str) -> None:
        """After `power_off`: the network is there again, and slurmd starts."""
        self.plug_in(node)
        self.start_node(node)

    def unplug(self, *machines: str, networks: Sequence[NetworkName] = ("management", "fabric")) -> None:
        """Pull the machines' cables. All goes on running; nothing is sent, nothing arrives, no connection is reset."""
        self._cables.set_cables(machines, networks, up=False)

    def plug_in(self, *machines: str, networks: Sequence[NetworkName] = ("management", "fabric")) -> None:
        self._cables.set_cables(machines, networks, up=True)

    @contextlib.contextmanager
    def unplugged(self, machine: str) -> Iterator[None]:
        """The machine's cables are pulled meanwhile."""
        self.unplug(machine)
        try:
            yield
        finally:
            self.plug_in(machine)

    @contextlib.contextmanager
    def rack_cut_off(self, rack: str) -> Iterator[None]:
        """The rack's cable to the spine of the management network is pulled meanwhile."""
        self._cables.set_rack(rack, up=False)
        try:
            yield
        finally:
            self._cables.set_rack(rack, up=True)

    @contextlib.contextmanager
    def host_cut_off(self) -> Iterator[None]:
        """No machine reaches the control plane meanwhile, nor it them; machines reach each other."""
        self._cables.set_uplink(up=False)
        try:
            yield
        finally:
            self._cables.set_uplink(up=True)

    @contextlib.contextmanager
    def lost_from(self, machine: str) -> Iterator[None]:
        """What the machine sends on the management network is lost meanwhile; it hears all."""
        self._cables.lose_from(machine, lost=True)
        try:
            yield
        finally:
            self._cables.lose_from(machine, lost=False)

    @contextlib.contextmanager
    def lost_to(self, machine: str) -> Iterator[None]:
        """What is sent to the machine on the management network is lost meanwhile; what it sends arrives."""
        self._cables.lose_to(machine, lost=True)
        try:
            yield
        finally:
            self._cables.lose_to(machine, lost=False)

    @contextlib.contextmanager
    def lost_between(self, sender: str, receiver: str) -> Iterator[None]:
        """What one machine sends to the other on the management network is lost meanwhile, and nothing else.

        Either may be this host (`network.HOST`), where the control plane runs.
        """
        self._cables.lose_between(sender, receiver, lost=True)
        try:
            yield
        finally:
            self._cables.lose_between(sender, receiver, lost=False)

    @contextlib.contextmanager
    def cut_off(self, machine: str, other: str = HOST) -> Iterator[None]:
        """The two reach each other no more meanwhile, and everybody else as before."""
        with self.lost_between(machine, other), self.lost_between(other, machine):
            yield

    @contextlib.contextmanager
    def frozen(self, machine: str) -> Iterator[list[Process]]:
        """All processes of the machine stand still meanwhile. Its kernel accepts and acknowledges what is sent."""
        stopped: dict[int, Process] = {}
        try:
            # A process can fork between the search and the signal.
            while new := [one for one in self._node_processes(machine) if one.pid not in stopped]:
                for process in new:
                    signal_process(process, signal.SIGSTOP)
                    stopped[process.pid] = process
            yield list(stopped.values())
        finally:
            for process in stopped.values():
                signal_process(process, signal.SIGCONT)

    @property
    def _cables(self) -> Switch:
        if self._switch is None:
            why = network.why_impossible() or "it is not running"
            raise ClusterError(f"the machines of this cluster have no cables: {why}")
        return self._switch

    # -- commands ----------------------------------------------------------------------------------------------

    def run(
        self,
        *arguments: str,
        user: str | None = None,
        cwd: Path | None = None,
        text: str | None = None,
        timeout_seconds: float = 60,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, as `user` where one is named. Its failure is the caller's."""
        home = cwd or (self.user_directory(user) if user else self.directory)
        entry = pwd.getpwnam(user) if user and self._login is None else None
        return subprocess.run(
            self._within(arguments, user, home),
            env={**self._inner_environment, "HOME": str(home), "USER": user or "root", **(environment or {})},
            cwd=home,
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            user=entry.pw_uid if entry else None,
            group=entry.pw_gid if entry else None,
            extra_groups=[] if entry else None,
        )

    def programs_with_munge(self) -> Path:
        """A folder with a `munge` that asks this cluster's munged."""
        folder = self.directory / "with-munge"
        folder.mkdir(exist_ok=True)
        program = folder / "munge"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("munge")} --socket={self.layout.munge_socket} "$@"\n')
        program.chmod(0o755)
        return folder

    def write_shell(self, path: Path, user: str, environment: Mapping[str, str]) -> None:
        """Writes a program that runs its arguments on the login node as `user`; without any, a shell."""
        home, entry = self.user_directory(user), pwd.getpwnam(user)
        there = [*self._within((), user, home)]
        there = there or ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "--"]
        variables = {**self._inner_environment, "HOME": str(home), "USER": user, **environment}
        named = [f"{name}={value}" for name, value in variables.items()]
        path.write_text(
            f"#!/bin/sh\n[ $# -gt 0 ] || set -- bash\ncd {shlex.quote(str(home))} || exit\n"
            f'exec env -i TERM="$TERM" {shlex.join([*named, *there])} "$@"\n'
        )
        path.chmod(0o700)

    def sbatch(
        self,
        *arguments: str,
        script: str | None = None,
        user: str = "news",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Submit a job as `user`; `script` is its text, else `arguments` end with a file's name. Return its id.

        Each job is a run of its own, unless `environment` names one: tests submit many jobs of one name in one folder.
        """
        run = {"UNDERSTUDY_RUN": secrets.token_hex(8), **(environment or {})}
        done = self.run("sbatch", "--parsable", *arguments, user=user, cwd=cwd, text=script, environment=run)
        if done.returncode != 0:
            raise ClusterError(f"sbatch {' '.join(arguments)} failed ({done.returncode}): {done.stderr.strip()}")
        return int(done.stdout.strip().partition(";")[0])

    def spawn(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Process:
        """Start a program beside the cluster's daemons, in the cluster's environment and yours; it ends with them."""
        if self._supervisor is None:
            raise ClusterError(f"cannot start {arguments[0]}: the cluster in {self.directory} is not running")
        return self._supervisor.start(arguments, {**self.environment, **(environment or {})}, log)

    def spawn_on(
        self, machine: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Like `spawn`, for a program of the machine: with its network and host name, where there are machines."""
        environment = {"SLURMD_NODENAME": machine, **(environment or {})}
        holder = self._machines.get(machine)
        return self.spawn(installation.join(holder.pid, arguments) if holder else arguments, log, environment)

    def start_module_on(
        self, node: str, module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> Process:
        """`python -m module` on the node, by a fork where nodes are machines."""
        if self._supervisor is None or node not in self._machines:
            return self.spawn_on(node, [sys.executable, "-m", module, *arguments], log, environment)
        environment = {**self.environment, "SLURMD_NODENAME": node, **environment}
        machine = self._machines[node].pid
        return self._supervisor.fork(f"{module}.__main__", arguments, environment, log, machine)

    def _spawn_slurm(self, arguments: Sequence[str], log: Path, machine: str) -> Process:
        holder = self._machines.get(machine, self._namespace)
        within = installation.enter(holder.pid, arguments) if holder else arguments
        return self.spawn(within, log, self._inner_environment)

    @property
    def _inner_environment(self) -> dict[str, str]:
        """Environment of programs that run where this cluster's Slurm is."""
        return self.environment | ({"PATH": installation.PATH} if self._namespace else {})

    def _within(self, arguments: Sequence[str], user: str | None = None, cwd: Path | None = None) -> Sequence[str]:
        """What to run for `arguments` to run where users' commands do."""
        login = self._login
        return arguments if login is None else installation.enter(login.pid, arguments, user, cwd)

    @property
    def _login(self) -> Process | None:
        """The process that holds the namespaces in which users' commands run; None: they run as the tests do."""
        return self._machines.get("login", self._namespace)

    def _open_namespace(self, root: Path) -> None:
        log = self.layout.log_directory / "namespace.out"
        holder = self.spawn(installation.open_namespace(root, self.directory), log)
        self._wait_until_ready([holder], f"{root} is open")
        self._namespace = holder
        installation.write_clients(self._clients, holder.pid)
        if self.slurm.pyslurm_python:
            installation.write_pyslurm_python(self.pyslurm_python, holder.pid, self.slurm.pyslurm_python)

    def _wait_until_ready(self, holders: Sequence[Process], what: str) -> None:
        """A process that holds namespaces is ready once it has become `sleep`."""

        def ready() -> bool:
            ended = [holder for holder in holders if not is_running(holder)]
            if ended:
                raise ClusterError(f"not reached: {what}; process {ended[0].pid} has ended\n{self._log_tails()}")
            return all(self._name_of(holder) == "sleep" for holder in holders)

        self.wait_until(ready, 10, what, 0.01)

    def _build_network(self, addresses: Addresses) -> None:
        log = self.layout.log_directory / "network.out"
        switch = self.spawn(network.switch_command(), log)
        self._wait_until_ready([switch], "the switches run")
        hosts, root = self.layout.hosts_file, self.slurm.root
        for machine, found in addresses.machines(self.node_names).items():
            command = network.machine_command(machine, found, switch.pid, hosts, root)
            within = installation.join_mounts(self._namespace.pid, command) if self._namespace else command
            self._machines[machine] = self.spawn(within, log)
        self._wait_until_ready(list(self._machines.values()), "every machine has a network")
        holders = {machine: holder.pid for machine, holder in self._machines.items()}
        self._switch = Switch(switch.pid, addresses, holders)
        self._switch.connect(self.node_names, self.layout.racks)

    @staticmethod
    def _name_of(process: Process) -> str:
        found = read_process(process.pid)
        return found.name if found else ""

    @property
    def _clients(self) -> Path:
        """Folder of programs that run the Slurm commands of another version; empty for this machine's own."""
        return self.directory / "bin"

    def user_directory(self, user: str) -> Path:
        """A directory that belongs to `user`, made where it is missing: jobs need one they may write to."""
        directory = self.directory / "home" / user
        if not directory.exists():
            entry = pwd.getpwnam(user)
            directory.mkdir(parents=True, exist_ok=True)  # several threads may want it first
            os.chown(directory, entry.pw_uid, entry.pw_gid)
        return directory

    def wait_until(
        self, predicate: Callable[[], object], timeout_seconds: float, what: str, interval_seconds: float = 0.3
    ) -> None:
        """Wait until `predicate` holds; where it does not in time, say so with the ends of the logs.

        Most predicates run a Slurm command. Asked ten times a second by four tests at once, they took both cores.
        """
        deadline = time.monotonic() + timeout_seconds * PATIENCE
        while not predicate():
            if (controller := self._daemons.get("controller")) and not is_running(controller):
                raise ClusterError(f"slurmctld died while waiting for: {what}\n{self._log_tails()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_seconds * PATIENCE:g} s: {what}\n{self._log_tails()}")
            time.sleep(interval_seconds)

    def wait_until_idle(self, timeout_seconds: float = 60) -> None:
        """Wait until every node is idle, answers, and is free for jobs."""
        self.wait_until(self._all_idle, timeout_seconds, "every node idle")

    def _all_idle(self) -> bool:
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N %T")
        states = dict(line.split() for line in done.stdout.splitlines() if line)
        return all(states.get(node) in ("idle", "reserved") for node in self.node_names)

    def _node_processes(self, node: str) -> list[Process]:
        """Processes of a node, or of the controller."""
        if self._supervisor is None:
            return []
        if node in self._machines:
            return self._processes_of_machine(self._machines[node])
        processes = all_processes()
        below = descendants([self._supervisor.pid], processes) - {self._supervisor.pid}
        roots = {pid for pid in below if self._is_of_node(processes[pid], node)}
        roots |= {
            pid
            for pid, environment in ((pid, environment_of(pid)) for pid in processes.keys() - below)
            if environment.get(MARK) == str(self.directory) and environment.get("SLURMD_NODENAME") == node
        }
        return [processes[pid] for pid in sorted(descendants(roots, processes))]

    def _processes_of_machine(self, machine: Process) -> list[Process]:
        found = all_processes()
        del found[machine.pid]
        return [found[pid] for pid in sorted(found) if network.is_in_namespace_of(machine.pid, pid)]

    def _is_of_node(self, process: Process, node: str) -> bool:
        daemon = self._daemons.get(node)
        if daemon is not None and daemon.pid == process.pid:
            return True
        if process.name == "slurmstepd":  # its environment says nothing of the node, and it left its slurmd
            return holds_open(process.pid, self.layout.node_log(node))
        return environment_of(process.pid).get("SLURMD_NODENAME") == node

    def start_munge(self) -> None:
        """Start munged, also again after `stop_munge`."""
        munge = self.layout.munge_directory
        key = munge / "key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(128))
        self.layout.munge_socket.unlink(missing_ok=True)  # of a munged that was killed
        self._munged = self.spawn(
            [
                "munged",
                "--foreground",
                f"--socket={self.layout.munge_socket}",
                f"--key-file={key}",
                f"--pid-file={munge}/pid",
                f"--log-file={munge}/log",
                f"--seed-file={munge}/seed",
            ],
            self.layout.log_directory / "munged.out",
        )
        self.wait_until(self.layout.munge_socket.is_socket, 10, f"munged opens {self.layout.munge_socket}", 0.01)

    def _refuse_what_cannot_work(self) -> None:
        if self._supervisor is not None:
            raise ClusterError(f"the cluster in {self.directory} runs already")
        if os.geteuid() != 0:
            raise ClusterError("a testbed cluster needs root: Slurm runs jobs as several users; use sudo")
        if self.slurm.root is not None and not self.slurm.root.is_dir():
            raise ClusterError(f"no Slurm {self.slurm.slurm} in {self.slurm.root}: run tests/testbed/slurm_versions.sh")
        missing = [name for name in _PROGRAMS if shutil.which(name, path=self.environment["PATH"]) is None]
        if missing:
            raise ClusterError(
                f"not installed: {', '.join(missing)}; apt-get install munge slurmctld slurmd slurm-client util-linux"
            )
        longest = len(os.fsencode(self.layout.munge_socket)) + 16
        if longest > _SOCKET_PATH_BYTES_MAX:
            raise ClusterError(f"{self.directory} is too long a path for the sockets in it; choose a shorter one")

    def _lay_out(self) -> None:
        for directory in (
            self.directory,
            self.layout.munge_directory,
            self.layout.log_directory,
            self.layout.device_directory,
            self.directory / "state",
            self.directory / "home",
            *(self.directory / "spool" / node for node in self.node_names),
        ):
            directory.mkdir(parents=True, exist_ok=True)
            # Ordinary users' commands and jobs come through here, and munged refuses what others may write to.
            directory.chmod(0o755)
        for number in range(self.layout.gpus_per_node):
            device = self.layout.device_directory / f"nvidia{number}"
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null: Slurm looks at the node only
        configuration.write(self.layout)
        if self.slurm.root is not None:
            # Newer versions look for a mounted tree of cgroups, whatever is chosen; 22.05 does not know this word.
            (self.directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n", encoding="utf-8")

    def _log_tails(self) -> str:
        parts = []
        for log in sorted(self.layout.log_directory.iterdir()):
            if log.suffix == ".out" and log.with_suffix(".log").exists():
                continue  # the same lines again: the daemon came as far as opening its log
            count = _NODE_LOG_TAIL_LINES if log.name.startswith("slurmd.") else _LOG_TAIL_LINES
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
            parts.extend([f"--- {log}", *lines])
        return "\n".join(parts)
