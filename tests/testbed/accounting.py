"""A cluster with accounting: slurmdbd, and a MariaDB that is the tests' own. Slurm keeps administrators nowhere else.

Belongs here: starting both before slurmctld, and giving users a level.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.testbed.cluster import ClusterError, SlurmCluster
from tests.testbed.configuration import free_ports

PROGRAMS = ("mariadbd", "slurmdbd", "sacctmgr")
DATABASE_OPTIONS = (
    "--no-defaults",
    "--user=root",
    "--skip-grant-tables",
    "--innodb-buffer-pool-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-fast-shutdown=2",
)


class AccountedCluster(SlurmCluster):
    def __init__(self, directory: Path, nodes: int, levels: Mapping[str, str], extra_lines: Sequence[str] = ()) -> None:
        """`levels`: None, Operator or Admin for users of this machine."""
        self._levels = dict(levels)
        self._database_port, self._accounting_port = free_ports(2)
        super().__init__(directory, nodes, gpus_per_node=0, extra_lines=extra_lines)
        self._address = self.layout.address_of("controller")
        lines = (
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={self._address}",
            f"AccountingStoragePort={self._accounting_port}",
            f"AccountingStoragePass={self.layout.munge_socket}",
        )
        self.layout = replace(self.layout, extra_lines=(*self.layout.extra_lines, *lines))

    def start_controller(self) -> None:
        """slurmctld does not start for the first time without slurmdbd, and 22.05.8 crashes where the first users are
        added while it runs.
        """
        missing = [name for name in PROGRAMS if shutil.which(name, path=self.environment["PATH"]) is None]
        if missing:
            raise ClusterError(f"not installed: {', '.join(missing)}; apt-get install slurmdbd mariadb-server-core")
        data, logs = self.directory / "mariadb", self.layout.log_directory
        data.mkdir()
        where = [f"--datadir={data}", f"--socket={data}/socket", f"--port={self._database_port}"]
        where.append(f"--bind-address={self._address}")
        self.spawn_on("controller", ["mariadbd", *DATABASE_OPTIONS, *where], logs / "mariadb.out")
        self.wait_until(lambda: self._answers(self._database_port), 30, "MariaDB answers", 0.05)
        settings = self.directory / "slurmdbd.conf"
        settings.touch(mode=0o600)
        settings.write_text("\n".join([*self._slurmdbd_conf(), ""]))
        self.spawn_on("controller", ["slurmdbd", "-D"], logs / "slurmdbd.out")
        self.wait_until(lambda: self._answers(self._accounting_port), 30, "slurmdbd answers", 0.05)
        self._account("add", "cluster", self.layout.name)
        for user, level in self._levels.items():
            self._account("add", "user", user, "account=root", f"adminlevel={level}")
        super().start_controller()

    def _account(self, *arguments: str) -> None:
        done = self.run("sacctmgr", "--immediate", *arguments)
        if done.returncode != 0:
            raise ClusterError(f"sacctmgr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")

    def _slurmdbd_conf(self) -> Sequence[str]:
        return (
            "DbdHost=localhost",
            f"DbdPort={self._accounting_port}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.layout.munge_socket}",
            "StorageType=accounting_storage/mysql",
            f"StorageHost={self._address}",
            f"StoragePort={self._database_port}",
            "StorageUser=root",
            f"LogFile={self.layout.log_directory}/slurmdbd.log",
            f"PidFile={self.directory}/slurmdbd.pid",
        )

    def _answers(self, port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self._address, port)) == 0
