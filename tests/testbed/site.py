"""A whole site on this machine: the Slurm cluster, the control plane, and an agent for each node with fake GPUs.

Belongs here: starting all of it, breaking it from outside, and asking the control plane. Must not: a story
(`tests.demo`) or promising anything (`tests`).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from tests import PYTHON_PATH, REPOSITORY
from tests.new_database import new_database
from tests.secrets_in_logs import refuse_secrets
from tests.testbed import fake_nvml
from tests.testbed.cluster import CLUSTER_NAME, ClusterError, SlurmCluster
from tests.testbed.configuration import free_ports
from tests.testbed.fake_fabric import FakeFabric
from tests.testbed.installation import NATIVE, Installation
from tests.testbed.processes import Process, is_running
from tests.testbed.serve import PARAMETERS_FILE, SERVE, Sections, split
from tests.tokens import bearer, secret, with_tokens
from understudy_agent.export import export
from understudy_agent.hooks.install import install
from understudy_agent.hooks.slurm_conf import PARAMETERS
from understudy_controlplane.fleet.identity import Role

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres

RESEARCHER = "news"
"""The ordinary user whose jobs are managed. Not `nobody`: that user id is no user for newer versions of Slurm."""

REBOOT_PROGRAM = "RebootProgram=/bin/true"
"""Slurm reboots no node without one. What it would do is `Site.finish_reboot`."""


FABRIC_PORTS = 4

FINDS_TORCH = "import sys, importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
"""Does not import it: that takes seconds."""


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())}}}"
    return json.dumps(value)


def write_secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def hook_lines(directory: Path | None) -> list[str]:
    """Lines for slurm.conf, after the testbed's own: of several the last counts."""
    if directory is None:
        return []
    lines = [f"{name}={directory / script}" for name, script in PARAMETERS.items()]
    return [*lines, "HealthCheckInterval=5", "PrologFlags=Alloc"]


class Node:
    """What a node shows of its hardware: files that its agent reads, and that faults are written into."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.gpus = fake_nvml.FakeGpus(directory / "gpus")
        self.fabric = FakeFabric(directory / "sys")
        self.kernel_log = directory / "kmsg"
        self.boot_id_file = directory / "boot_id"
        self.socket = directory / "agent.sock"
        self.config_file = directory / "agent.toml"
        self.token_file = directory / "agent.token"
        self._sequence = itertools.count(1)

    def lay_out(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.boot()

    def boot(self) -> None:
        """Another boot: a new boot id, an empty kernel log, GPUs that answer again."""
        self.gpus.write(fake_nvml.h100_node(self.name))
        self.fabric.lay_out(FABRIC_PORTS)
        self.kernel_log.write_text("")
        self.boot_id_file.write_text(f"{uuid.uuid4()}\n")

    def log_kernel_message(self, text: str) -> float:
        """Append a record as the kernel would; returns when."""
        at = time.time()
        microseconds = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1_000_000)
        with self.kernel_log.open("a") as log:
            log.write(f"3,{next(self._sequence)},{microseconds},-;{text}\n")
        return at

    def fail_gpu(self, gpu: int = 0, xid: int = 79) -> float:
        """The GPU falls off the bus: NVML loses it, the driver logs the Xid. Returns when the line was written."""
        bus = self.gpus.read()[gpu].bus_id.rsplit(".", 1)[0]
        self.gpus.lose(gpu)
        return self.log_kernel_message(
            f"NVRM: Xid (PCI:{bus}): {xid}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        )

    def throttle_gpu(self, gpu: int = 0, share: float = 2 / 3) -> float:
        """Hardware slowdown: the GPU runs at this share of its clock and NVML says why. Returns when."""
        full = self.gpus.read()[gpu].sm_clock_max_mhz or 0
        self.gpus.slow_down(gpu, int(full * share), fake_nvml.REASON_HW_SLOWDOWN | fake_nvml.REASON_HW_THERMAL_SLOWDOWN)
        return time.time()


class Site:
    """Use as a context manager. Everything lies in `directory`; every process below the cluster's supervisor."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 8,
        spares: int = 3,
        mode: str = "act",
        *,
        slurm: Installation = NATIVE,
        slurm_settings: Mapping[str, str | float] | None = None,
        slurm_conf_lines: Sequence[str] = (),
        hooks: bool = False,
        settings: Mapping[str, Mapping[str, str | float | bool]] | None = None,
        munge: bool = False,
        leaf_switches: Mapping[str, tuple[str, ...]] | None = None,
        blocks: Mapping[str, tuple[str, ...]] | None = None,
        database_machine: bool = False,
    ) -> None:
        """`slurm_settings` go into the control plane's section [slurm], `settings` are further sections of its
        configuration. `hooks`: Slurm runs Understudy's Prolog, Epilog, TaskProlog and HealthCheckProgram.
        `munge`: agents get their tokens by MUNGE; otherwise each has one in a file. `database_machine`: the control
        plane's database is PostgreSQL on a machine of its own (some seconds more), otherwise SQLite beside it.
        """
        self._database_machine = database_machine
        self._postgres: Postgres | None = None
        self.database_url = ""
        # A test breaks more of its few nodes at once than a fleet would lose, and some jobs have neither hook nor
        # launcher that could confirm that a node is dead.
        self._settings: dict[str, Mapping[str, str | float | bool]] = {
            "guards": {"breaker_share_max": 1.0},
            "silence": {"dead_unconfirmed_seconds": 6.0},
            **(settings or {}),
        }
        self._munge = munge
        self._hooks = directory.resolve() / "hooks" if hooks else None
        self.cluster = SlurmCluster(
            directory,
            nodes=nodes,
            slurm=slurm,
            extra_lines=[REBOOT_PROGRAM, *hook_lines(self._hooks), *slurm_conf_lines],
            leaf_switches=leaf_switches,
            blocks=blocks,
        )
        self._slurm_settings = dict(slurm_settings or {})
        if self._slurm_settings.get("gateway") == "pyslurm":
            self._slurm_settings["pyslurm_python"] = str(self.cluster.pyslurm_python)
        self.directory = self.cluster.directory
        run_directory = {"agent_run_directory": f"{self.directory}/nodes/%n"}
        self._settings["repair"] = run_directory | dict(self._settings.get("repair", {}))
        self.nodes = {name: Node(name, self.directory / "nodes" / name) for name in self.cluster.node_names}
        self._port, self._standby_port = free_ports(2)
        # One for all requests: to make a client takes 44 ms of processor time, and tests ask many times a second. No
        # connection is kept, for the control plane may be killed meanwhile.
        self.http = httpx.Client(
            base_url=self.url,
            timeout=60,
            limits=httpx.Limits(max_keepalive_connections=0),
            headers=bearer(Role.VIEWER),
        )
        self.spares_wanted = spares
        self._mode = mode
        self._agents: dict[str, Process] = {}
        self._control_plane: Process | None = None

    @property
    def url(self) -> str:
        return f"http://{self.cluster.layout.host_address}:{self._port}"

    @property
    def standby_url(self) -> str:
        return f"http://{self._standby_address}:{self._standby_port}"

    @property
    def _standby_address(self) -> str:
        """A machine of its own, where there are machines: one of the two can be cut from others alone."""
        return self.cluster.layout.address_of("login")

    def __enter__(self) -> Self:
        self._lay_out()
        self.cluster.start()
        try:
            self.database_url = with_tokens(self._new_database(), self.nodes)
            self._write_config()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self.http.close()
        shutil.rmtree(self.directory / "venv", ignore_errors=True)  # a gigabyte that no post-mortem needs
        if kind is None:
            refuse_secrets(self.cluster.layout.log_directory)

    def _stop(self) -> None:
        if self._postgres is not None:
            self._postgres.stop()
        self.cluster.stop()

    def _new_database(self) -> str:
        """Returns its URL."""
        if not self._database_machine:
            return new_database(self.directory / "understudy.db")
        from tests.testbed.postgres import Machine, Postgres  # most sites need neither the server nor its driver

        log = self.cluster.layout.log_directory / "postgresql.log"
        self._postgres = Postgres(
            Machine(
                self.cluster.layout.address_of("database"),
                free_ports(1)[0],
                lambda arguments: self.cluster.spawn_on("database", arguments, log),
            )
        )
        return self._postgres.new_database()

    # -- its parts ---------------------------------------------------------------------------------------------

    def start_control_plane(self, program: Sequence[str] = SERVE, wait: bool = True) -> Process:
        """`program` is what follows `python`; the configuration's path is added."""
        arguments = [sys.executable, *program, "--config", str(self.config_file)]
        log = self.cluster.layout.log_directory / "controlplane.log"
        environment = {"PYTHONPATH": PYTHON_PATH}
        self._control_plane = self.cluster.spawn(arguments, log, environment)
        if wait:
            self.wait_for(self.healthy, 30, "the control plane is healthy")
        return self._control_plane

    def start_standby(self, program: Sequence[str] = SERVE) -> Process:
        """A second control plane on the same database (`database_machine`); agents know both."""
        config = self.config_file.with_name("standby.toml")
        own, other = f'host = "{self.cluster.layout.host_address}"\nport = {self._port}\n', self._standby_address
        config.write_text(self.config_file.read_text().replace(own, f'host = "{other}"\nport = {self._standby_port}\n'))
        log = self.cluster.layout.log_directory / "standby.log"
        arguments = [sys.executable, *program, "--config", str(config)]
        standby = self.cluster.spawn_on("login", arguments, log, {"PYTHONPATH": PYTHON_PATH})
        self.wait_for(lambda: "stands_by" in log.read_text(), 30, "the second control plane stands by")
        return standby

    def ask_standby(self) -> None:
        """Later requests of the site go to the second control plane."""
        self.http.base_url = httpx.URL(self.standby_url)

    @property
    def control_plane_process(self) -> Process:
        assert self._control_plane is not None
        return self._control_plane

    def kill_control_plane(self) -> None:
        """SIGKILL, as a crash."""
        assert self._control_plane is not None
        if is_running(self._control_plane):
            os.kill(self._control_plane.pid, signal.SIGKILL)

    def control_plane_runs(self) -> bool:
        return self._control_plane is not None and is_running(self._control_plane)

    def start_agents(self) -> None:
        for name in self.nodes:
            self.start_agent(name)

    def start_agent(self, name: str) -> Process:
        node = self.nodes[name]
        environment = {
            "PYTHONPATH": PYTHON_PATH,
            "LD_LIBRARY_PATH": str(self.directory / "lib"),
            "FAKE_NVML_STATE": str(node.gpus.path),
        }
        log = self.cluster.layout.log_directory / f"agent.{name}.log"
        arguments = ["--config", str(node.config_file)]
        self._agents[name] = self.cluster.start_module_on(name, "understudy_agent", arguments, log, environment)
        return self._agents[name]

    def kill_agent(self, name: str) -> float:
        """SIGKILL, as a crash. Returns when."""
        at = time.time()
        if is_running(self._agents[name]):
            os.kill(self._agents[name].pid, signal.SIGKILL)
        return at

    def start_keepers(self, names: Sequence[str]) -> Path:
        """Starts keepers of these nodes, as root. Returns the folder of their sockets, `NODE.sock`."""
        folder = self.directory / "keepers"
        folder.mkdir(exist_ok=True)
        for name in names:
            config = folder / f"{name}.toml"
            config.write_text(
                f'cluster = "{CLUSTER_NAME}"\ncontrol_plane_urls = ["{self.url}"]\nnode = "{name}"\n'
                f'munge_socket = "{self.cluster.layout.munge_socket}"\n'
                f'[keeper]\nmemory_bytes = {1 << 26}\nsocket = "{folder}/{name}.sock"\n'
                f'address = "{self.cluster.layout.address_of(name)}"\nport = {free_ports(1)[0]}\n'
            )
            log = self.cluster.layout.log_directory / f"keeper-{name}.log"
            command = [sys.executable, "-P", "-m", "understudy_keeper", "--config", str(config)]
            self.cluster.spawn_on(name, command, log, {"PYTHONPATH": PYTHON_PATH})
        for name in names:
            self.wait_for((folder / f"{name}.sock").exists, 30, f"the keeper of {name} listens")
        return folder

    def kill_node(self, name: str) -> float:
        """slurmd, agent, step daemons and ranks at once, with SIGKILL. Returns when."""
        at = time.time()
        self.cluster.kill_node(name)
        return at

    def power_off(self, name: str) -> float:
        """Does as `kill_node`, but no connection is reset: there is only silence. Returns when."""
        at = time.time()
        self.cluster.power_off(name)
        return at

    def lose_node(self, name: str) -> float:
        """Its power, or at least all its processes where nodes are no machines. Returns when."""
        return self.power_off(name) if self.cluster.has_machines else self.kill_node(name)

    def finish_reboot(self, name: str) -> None:
        """A node that Slurm is rebooting goes down and comes back: another boot, GPUs that work, its agent again."""
        self.cluster.kill_node(name)
        self.nodes[name].boot()
        self.cluster.start_node(name, rebooted=True)
        self.cluster.wait_until(
            lambda: "REBOOT_ISSUED" not in self.cluster.run("scontrol", "show", "node", name).stdout,
            60,
            f"{name} has rebooted",
            interval_seconds=0.05,
        )
        # Started so, a slurmd claims a reboot with every registration: the next one would be an unexpected one. No job
        # may start in between, for it would end with this slurmd.
        with self.cluster.frozen("controller"):
            self.cluster.kill_node(name)
            self.cluster.start_node(name)
        self.start_agent(name)

    def submit(self, script: Path, *arguments: str, user: str = RESEARCHER, options: Sequence[str] = ()) -> int:
        """sbatch with the environment that ranks on a testbed need. Returns the job id."""
        return self.cluster.sbatch(*options, str(script), *arguments, user=user, environment=self._job_environment)

    def write_shell(self, path: Path) -> None:
        """Writes a program that runs commands of the researcher, whose `python` has PyTorch and `understudy`."""
        programs = f"{self.job_python().parent}:{self.cluster.programs_with_munge()}:{self.cluster.environment['PATH']}"
        known = {"PATH": programs, "UNDERSTUDY_URL": self.url}
        self.cluster.write_shell(path, RESEARCHER, {**self._job_environment, **known})

    @property
    def _job_environment(self) -> dict[str, str]:
        return {"TESTBED": str(self.directory), "PYTHONPATH": str(self.code), "UNDERSTUDY_SOCKET": self.rank_socket}

    @property
    def code(self) -> Path:
        """Copies of what jobs import, where ordinary users can read them."""
        return self.directory / "code"

    def copy_launcher(self) -> None:
        """Users run the launcher of this checkout, whichever one is installed."""
        for package in ("understudy_agent", "understudy_launcher", "understudy_wire"):
            if not (self.code / package).exists():
                bytecode = shutil.ignore_patterns("__pycache__")
                shutil.copytree(REPOSITORY / "agents" / package, self.code / package, ignore=bytecode)

    @property
    def rank_socket(self) -> str:
        return str(self.directory / "nodes" / "%n" / "agent.sock")

    def job_python(self) -> Path:
        """A Python with the development packages that an ordinary user can run, wherever the checkout lies."""
        here = Path(sys.executable)
        if self._can_run(here):
            return here
        copy = self.directory / "venv"
        if not copy.exists():
            linked = subprocess.run(["cp", "-al", str(here.parents[1]), str(copy)], capture_output=True, check=False)
            if linked.returncode != 0:  # another file system: copy the bytes
                shutil.rmtree(copy, ignore_errors=True)
                subprocess.run(["cp", "-a", str(here.parents[1]), str(copy)], check=True)
        python = copy / "bin" / "python"
        if not self._can_run(python):
            raise ClusterError(f"{RESEARCHER} cannot run {python}: is {python.resolve()} open to all users?")
        return python

    def _can_run(self, python: Path) -> bool:
        try:
            return self.cluster.run(str(python), "-c", FINDS_TORCH, user=RESEARCHER).returncode == 0
        except PermissionError:  # a folder above it is closed to other users
            return False

    # -- asking ------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        response = self.http.get(path)
        response.raise_for_status()
        return response.json()

    def items(self, path: str) -> list[dict[str, Any]]:
        """Items of a list's first page."""
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def healthy(self) -> bool:
        try:
            return self.http.get("/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def recoveries(self) -> list[dict[str, Any]]:
        """Swaps, oldest first."""
        return [one for one in reversed(self.items("/v1/recoveries")) if one["kind"] == "pool"]

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/nodes/{name}")
        return found

    def spares_held(self) -> list[str]:
        return [one["name"] for one in self.items("/v1/nodes?spare=true")]

    def wait_for(self, predicate: Callable[[], object], timeout_seconds: float, what: str) -> None:
        self.cluster.wait_until(predicate, timeout_seconds, what)

    # -- its files ---------------------------------------------------------------------------------------------

    @property
    def config_file(self) -> Path:
        return self.directory / "controlplane.toml"

    @property
    def operator_token_file(self) -> Path:
        return self.directory / "operator.token"

    @property
    def _munge_socket(self) -> str:
        return f'munge_socket = "{self.cluster.layout.munge_socket}"'

    def _lay_out(self) -> None:
        """A site starts from nothing: what an earlier one left in the directory is removed."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o755)
        write_secret(self.operator_token_file, secret(Role.ADMIN))
        fake_nvml.build(self.directory / "lib")
        export(self.code)
        if self._hooks is not None:
            # Debian's Python, not this one: the TaskProlog runs as the job's user.
            install(self._hooks, f"{self.directory}/nodes/%n", self.rank_socket, python="/usr/bin/python3")
        for node in self.nodes.values():
            node.lay_out()
            write_secret(node.token_file, secret(Role.NODE, node.name))
            node.config_file.write_text(
                "\n".join(
                    (
                        f'cluster = "{CLUSTER_NAME}"',
                        f'control_plane_urls = ["{self.url}", "{self.standby_url}"]',
                        self._munge_socket if self._munge else f'token_file = "{node.token_file}"',
                        f'kernel_log = "{node.kernel_log}"',
                        f'socket = "{node.socket}"',
                        f'run_directory = "{node.directory}"',
                        f'boot_id_file = "{node.boot_id_file}"',
                        "[host]",
                        f'sys = "{node.fabric.sys}"',
                        "",
                    )
                )
            )

    def _write_config(self) -> None:
        sections: Sections = {"spares": {}} | {name: dict(values) for name, values in self._settings.items()}
        sections["spares"] = {"count": self.spares_wanted} | sections["spares"]
        sections["slurm"] = dict(self._slurm_settings)
        sections, parameters = split(sections)
        self.config_file.with_name(PARAMETERS_FILE).write_text(json.dumps(parameters))
        self.config_file.write_text(
            "\n".join(
                (
                    f'cluster = "{CLUSTER_NAME}"',
                    f'mode = "{self._mode}"',
                    "[server]",
                    f'host = "{self.cluster.layout.host_address}"',
                    f"port = {self._port}",
                    f'database = "{self.database_url}"',
                    self._munge_socket,
                    *(
                        line
                        for section, values in sections.items()
                        for line in (f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items()))
                    ),
                    "",
                )
            )
        )
