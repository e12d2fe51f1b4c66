"""A control plane that answers over HTTP inside the test's process."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import structlog
import uvicorn
from click.testing import CliRunner, Result

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import secret, with_tokens
from understudy_client import Record
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.cli.main import root
from understudy_controlplane.fleet.identity import Role


def record(**fields: Any) -> Record:
    """A record as the client reads it."""
    made: Record = json.loads(json.dumps(fields), object_hook=Record)
    return made


@dataclass(frozen=True)
class Served:
    control_plane: ControlPlane
    slurm: VirtualSlurm
    url: str

    def run(self, *arguments: str, role: Role = Role.ADMIN, status: int = 0) -> str:
        return run(*arguments, url=self.url, token=secret(role), status=status).output


def run(*arguments: str, url: str, token: str = "", status: int = 0) -> Result:
    environment = {"UNDERSTUDY_URL": url, "UNDERSTUDY_TOKEN_FILE": "", "UNDERSTUDY_CA_FILE": "", "COLUMNS": "200"}
    with NamedTemporaryFile("w") as file:
        file.write(token)
        file.flush()
        environment |= {"UNDERSTUDY_TOKEN_FILE": file.name} if token else {}
        done = CliRunner().invoke(root, arguments, prog_name="understudy", env=environment)
    assert done.exit_code == status, done.output
    return done


@contextmanager
def served(folder: Path, mode: str, nodes: int = 4, tasks: int = 0, **sections: Any) -> Iterator[Served]:
    """Job 1 is an array of so many tasks."""
    before = structlog.get_config()
    slurm = VirtualSlurm([f"n{number}" for number in range(1, nodes + 1)])
    if tasks:
        slurm.submit_array("ann", tasks, comment="understudy")
    server = {"database": with_tokens(new_database(folder / "fleet.db"))}
    with (
        closing(
            compose(b.config(mode=mode, server=server, **sections), Outside(slurm, lambda _node: True))
        ) as control_plane,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        control_plane.loop.tick()
        settings = uvicorn.Config(control_plane.app, lifespan="off", log_level="error", ws="none")
        web = uvicorn.Server(settings)
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
        thread.start()
        while not web.started:
            time.sleep(0.001)
        try:
            yield Served(control_plane, slurm, f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            web.should_exit = True
            thread.join()
            structlog.configure(**before)


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("observing"), "observe", tasks=3) as made:
        yield made


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("acting"), "act") as made:
        yield made
