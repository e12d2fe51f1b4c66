"""Trainings end with the same state where they went on from memory, in the middle of whatever a fault came.

Keepers, ranks and their process group are real. tests/recover/test_same_state.py shows the same for files.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook import rank_process
from tests.hook.training_site import RUN_SECONDS_MAX, TrainingSite
from tests.keeper.site import KeeperSite
from tests.waiting import wait_until
from understudy_agent.keeper_client import exchange

pytestmark = [pytest.mark.integration, pytest.mark.patient]

STEPS = 12

OF_BOTH = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

folder, rank, attempt = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["ATTEMPT"])
torch.manual_seed(rank if PEER or attempt else 7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


def step_of(inputs):
    model(inputs).square().sum().backward()
    for one in model.parameters():
        dist.all_reduce(one.grad)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def end():
    torch.save([model.state_dict(), optimizer.state_dict()], folder / f"end-{rank}")
"""

PEER = f"""
PEER = True
{OF_BOTH}
from understudy import Monitor
from understudy.peer import PeerState
from understudy.training_state import TrainingState

monitor = Monitor()
peers = PeerState(monitor, model=model, optimizer=optimizer, training=TrainingState())
dist.init_process_group("gloo")
if (folder / "die-in-restore").exists() and attempt == 1 and rank == 1:
    optimizer.load_state_dict = die                  # the model has been loaded
start = peers.restore()
(folder / f"start-{{attempt}}-{{rank}}").write_text(str(start))
for step in range(start or 0, {STEPS}):
    step_of(torch.randn(4, 8))
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == 5 and (folder / "wait").exists() and not attempt:
        (folder / f"waits-{{rank}}").touch()
        while (folder / "wait").exists():
            time.sleep(0.01)
    if step + 1 == 6 and (folder / "die-in-save").exists() and not attempt and rank == 1:
        optimizer.state_dict = die                   # the other rank saves
    if peers.due(step + 1, every=3):
        assert peers.save(step + 1) and peers.wait()
    if step + 1 == 7 and (folder / "die-in-restore").exists() and not attempt and rank == 1:
        die()
end()
dist.barrier()
"""

LIVE = f"""
PEER = False
{OF_BOTH}
from datetime import timedelta
from understudy import state_handover as of_live
from understudy.state_handover import LiveState

of_live.BUCKET_BYTES = 64
live = LiveState(model=model, optimizer=optimizer)


def die_at_fourth(function):
    calls = []

    def called(*arguments, **named):
        calls.append(1)
        return die() if len(calls) == 4 else function(*arguments, **named)

    return called


def train(gang):
    store = dist.FileStore(str(folder / f"gang-{{gang}}"), 3)
    dist.init_process_group("gloo", rank=rank, world_size=3, store=store, timeout=timedelta(seconds=60))
    start = live.restore(lambda: 0)
    (folder / f"start-{{gang}}-{{rank}}").write_text(str(start))
    for step in range(start, {STEPS}):
        step_of(torch.randn(4, 8, generator=torch.Generator().manual_seed(3 * step + rank)))
        with live.update(step + 1):
            if (folder / f"die-in-update-{{gang}}-{{rank}}").exists() and step == 5:
                model[0].weight.data.zero_()
                die()
            optimizer.step()
        optimizer.zero_grad()


gang = attempt
while True:
    if (folder / f"die-in-transfer-{{gang}}-{{rank}}").exists():
        dist.send, dist.recv = die_at_fourth(dist.send), die_at_fourth(dist.recv)
    try:
        train(gang)
        break
    except RuntimeError as error:                    # a rank is gone
        print(error, flush=True)
        dist.destroy_process_group()
        optimizer.zero_grad()
        gang += 1
end()
dist.barrier()
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[bytes]]:
    """What ranks of a script end with where no fault comes."""
    found: dict[str, list[bytes]] = {}

    def of(script: str) -> list[bytes]:
        if script not in found:
            folder = tmp_path_factory.mktemp("undisturbed")
            if script == LIVE:
                ranks = Ranks(TrainingSite(folder))
                ranks.start(0, 0, 1, 2)
                ranks.end(0, 1, 2)
            else:
                site = KeeperSite(folder)
                try:
                    site.start("n1", "n2")
                    site.train_on(["n1", "n2"], script)
                finally:
                    site.close()
            found[script] = ends(folder)
        return found[script]

    return of


def ends(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "checkpoints").glob("end-*"))]


def starts(site: TrainingSite, attempt: int) -> list[str]:
    return [path.read_text() for path in sorted(site.checkpoints.glob(f"start-{attempt}-*"))]


@pytest.mark.parametrize("moment", ["save", "copy", "restore"])
def test_from_the_memory_of_a_buddy(moment: str, site: KeeperSite, undisturbed: Callable[[str], list[bytes]]) -> None:
    """Rank 1 and its node are lost, and n3 takes its place."""
    site.start("n1", "n2", "n3")
    (site.checkpoints / ("wait" if moment == "copy" else f"die-in-{moment}")).touch()
    with site.training_on(["n1", "n2"], PEER) as ranks:
        if moment == "copy":
            wait_until(lambda: len(list(site.checkpoints.glob("waits-*"))) == 2, "both ranks are at step 5")
            with site.keepers.stopped("n1"):  # which copies what n2 has
                (site.checkpoints / "wait").unlink()
                wait_until(lambda: holds(site, "n2", 6), "n2 has the part of step 6")
                site.kill("n2")
                ranks[1].kill()
        ranks[1].join(RUN_SECONDS_MAX)
        assert ranks[1].exitcode == -signal.SIGKILL
    if moment != "copy":
        site.kill("n2")
    if moment == "restore":
        with site.training_on(["n1", "n3"], PEER, attempt=1) as ranks:
            ranks[1].join(RUN_SECONDS_MAX)
            assert ranks[1].exitcode == -signal.SIGKILL
        assert starts(site, 1) == [], "no rank goes on before all have restored"
    last = 2 if moment == "restore" else 1
    site.train_on(["n1", "n3"], PEER, attempt=last)
    assert starts(site, last) == (["6", "6"] if moment == "restore" else ["3", "3"])
    assert ends(site.folder) == undisturbed(PEER)


def holds(site: KeeperSite, node: str, step: int) -> bool:
    known = exchange(site.keepers.socket(node), ())
    return known is not None and any(one.step == step for one in known.saves)


class Ranks:
    """Processes of a gang that goes on where one of them is lost."""

    def __init__(self, site: TrainingSite) -> None:
        self._site, self._program = site, site._program(LIVE)
        self._processes: dict[int, multiprocessing.Process] = {}

    def start(self, gang: int, *ranks: int) -> None:
        for rank in ranks:
            environment = {**self._site._environment(), "RANK": str(rank), "ATTEMPT": str(gang)}
            output = self._site.folder / f"output-{rank}"
            self._processes[rank] = rank_process.start(self._program, self._site.checkpoints, environment, output)

    def lose(self, rank: int) -> None:
        self._processes[rank].join(RUN_SECONDS_MAX)
        assert self._processes[rank].exitcode == -signal.SIGKILL, self._output(rank)

    def end(self, *ranks: int) -> None:
        for rank in ranks:
            self._processes[rank].join(RUN_SECONDS_MAX)
            assert self._processes[rank].exitcode == 0, self._output(rank)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()

    def _output(self, rank: int) -> str:
        return (self._site.folder / f"output-{rank}").read_text()


@pytest.mark.parametrize("lost", [2, 0], ids=["who gets the state", "who gives it"])
def test_from_the_ranks_that_are_left(lost: int, tmp_path: Path, undisturbed: Callable[[str], list[bytes]]) -> None:
    """Rank 2 is lost in the middle of an update, and then one in the middle of the transfer to the new rank 2."""
    site = TrainingSite(tmp_path)
    for name in ("die-in-update-0-2", f"die-in-transfer-1-{lost}"):
        (site.checkpoints / name).touch()
    ranks = Ranks(site)
    try:
        ranks.start(0, 0, 1, 2)
        ranks.lose(2)
        ranks.start(1, 2)
        ranks.lose(lost)
        ranks.start(2, lost)
        ranks.end(0, 1, 2)
    finally:
        ranks.close()
    assert starts(site, 2) == ["6", "6", "6"]
    assert ends(site.folder) == undisturbed(LIVE)
