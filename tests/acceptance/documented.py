"""The examples of the documents, word for word, as gangs of two nodes with a fault in them.

`run` starts one on a site and checks that it goes on from its checkpoint. The fault comes from outside of the example:
a `sitecustomize` in the job's PYTHONPATH holds every rank of launch 0 after a step, and kills the last rank there.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests import REPOSITORY
from tests.acceptance import gang
from tests.testbed.site import RESEARCHER, Site

DOCS = REPOSITORY / "docs"

FAULT = '''
import os
import signal
import sys
import time
from importlib.machinery import PathFinder


class Fault:
    """Patches the hook once it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "understudy.monitor":
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            patch(module.Monitor)

        spec.loader.exec_module = exec_module
        return spec


def patch(monitor):
    begin, finish, begun = monitor._begin_step, monitor._finish_step, []

    def begin_step(self, number):
        launch, rank = (os.environ.get(name, "0") for name in ("UNDERSTUDY_LAUNCH", "RANK"))
        if not begun or begun[-1] != launch:
            begun.append(launch)
            with open(os.environ["FAULT_PLACE"] + f"/began-{launch}-{rank}", "w") as file:
                file.write(str(int(number)))
        return begin(self, number)

    def finish_step(self, finished):
        finish(self, finished)
        launch, rank = os.environ.get("UNDERSTUDY_LAUNCH", "0"), os.environ.get("RANK")
        if launch == "0" and int(finished.number) == int(os.environ["FAULT_STEP"]):
            while not os.path.exists(os.environ["FAULT_PLACE"] + "/go"):
                time.sleep(0.02)
            if int(rank) == int(os.environ["WORLD_SIZE"]) - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.5 if "restartable" in sys.modules["__main__"].__dict__ else 60)

    monitor._begin_step, monitor._finish_step = begin_step, finish_step


if "FAULT_STEP" in os.environ:
    sys.meta_path.insert(0, Fault())
'''

PRELUDE = """
import os

import torch
import torch.distributed as dist

rank, world, total = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 1200
dist.init_process_group("gloo", rank=rank, world_size=world)
os.makedirs("checkpoints", exist_ok=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
state = {"model": model.state_dict()}
tensors, loss = {"weight": torch.zeros(4)}, torch.zeros(1)


def train(step):
    model(torch.ones(4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def load(found):
    assert found and (not isinstance(found, str) or os.path.exists(found)), found


def write(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("weights")


"""
"""What the pages' shorter examples take for granted: the user's own model and loop."""


@dataclass(frozen=True, slots=True)
class Example:
    page: str
    number: int = 0
    """Number among the page's Python blocks."""
    checkpoint: int = 500
    """The step of the checkpoint from which it goes on."""
    whole: bool = True
    """A script that needs no prelude."""
    nodes: int = 2
    options: tuple[str, ...] = ()
    announced: bool = True
    """True if it is announced to the control plane; else it looks for its checkpoint itself."""
    step_kept: int = 0
    """Step kept in memory, further than the checkpoint."""

    @property
    def name(self) -> str:
        return f"{Path(self.page).stem}-{self.number}"

    def text(self) -> str:
        blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / self.page).read_text(), re.DOTALL | re.MULTILINE)
        return str(blocks[self.number]) if self.whole else PRELUDE + str(blocks[self.number])


EXAMPLES = (
    Example("frameworks/ddp.md", 2, 20),
    Example("frameworks/torch-save.md", whole=False),
    Example("quickstart.md", 0, 100, whole=False),
    Example("checkpoints.md", whole=False),
    Example("frameworks/dcp.md", whole=False),
    Example("frameworks/safetensors.md", whole=False),
    Example("frameworks/plain.md", 0, 20, nodes=1),
    Example("frameworks/ddp.md", 0, 20, options=("--in-process",), announced=False),
    Example("frameworks/ddp.md", 1, 20, options=("--in-process",), step_kept=23),
    Example("frameworks/lightning.md", 0, 10),
    Example("frameworks/huggingface.md", 0, 10),
)
NOT_HERE = {"frameworks/megatron.md", "frameworks/deepspeed.md"}
"""Their libraries need GPUs: tests/hook/test_adapters.py holds them to the documented calls."""


def start(site: Site) -> None:
    """Agents and control plane, and what jobs import."""
    gang.start_site(site)
    site.copy_launcher()
    (site.code / "sitecustomize.py").write_text(FAULT)


def run(site: Site, example: Example) -> None:
    """Runs it to its end. Raises AssertionError unless it goes on from its checkpoint after the fault."""
    home = site.cluster.user_directory(RESEARCHER) / example.name
    home.mkdir(exist_ok=True)
    shutil.chown(home, RESEARCHER)
    (home / "example.py").write_text(example.text())
    python = site.job_python()
    launcher = f"{python} -P -m understudy_launcher --nodes {example.nodes} --procs-per-node 1"
    (home / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH --no-kill --output={home}/output --chdir={home}\n"
        f"export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 FAULT_PLACE={home} FAULT_STEP={example.checkpoint + 2}\n"
        f"exec {launcher} {' '.join(example.options)} -- {python} {home}/example.py {home}/checkpoints\n"
    )
    (home / "checkpoints").mkdir()
    shutil.chown(home / "checkpoints", RESEARCHER)
    wanted = [f"--nodes={example.nodes}", "--gres=gpu:8", "--comment=understudy"]
    job = site.submit(home / "job.sh", options=wanted)

    def complete() -> bool:
        done = {one["step"] for one in site.items("/v1/checkpoints") if one["complete"] and one["job_id"] == job}
        assert gang.state(site, job) not in ("FAILED", "COMPLETED"), output(home)
        return example.checkpoint in done if example.announced else any((home / "checkpoints").glob("*.pt"))

    try:
        site.wait_for(complete, 120, f"{example.name} has saved step {example.checkpoint}")
        (home / "go").touch()
        site.wait_for(lambda: gang.state(site, job) not in ("PENDING", "RUNNING", "COMPLETING"), 120, "it has ended")
    except Exception as error:
        error.add_note(output(home))
        raise
    began = {path.name: int(path.read_text()) for path in home.glob("began-1-*")}
    assert gang.job_fields(site, job)["ExitCode"] == "0:0", output(home)
    step = example.step_kept or example.checkpoint
    assert began == {f"began-1-{rank}": step for rank in range(example.nodes)}, output(home)


def output(home: Path) -> str:
    path = home / "output"
    return path.read_text() if path.exists() else "(no output yet)"
