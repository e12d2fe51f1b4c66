"""A gang whose state is in the memory of two nodes: what it goes on from when nodes are lost."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.keeper.site import KeeperSite
from understudy_agent.keeper_client import exchange
from understudy_controlplane.fleet.saves_in_memory import saves_in_memory

pytestmark = [pytest.mark.integration, pytest.mark.patient]

GANG = """
import json, os, sys
import torch
import torch.distributed as dist
from pathlib import Path
from typing import Any
from understudy import Monitor
from understudy.peer import PeerState

folder, rank, attempt = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["ATTEMPT"])
torch.manual_seed(100 * attempt + rank)              # each rank has another part, as with FSDP
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
optimizer = torch.optim.AdamW(model.parameters())
monitor = Monitor()
peers = PeerState(monitor, model=model, optimizer=optimizer)


def train(first, last):
    for step in range(first, last):
        torch.manual_seed(1000 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().sum().backward()
        optimizer.step()


def state():
    moments = [one["exp_avg"].double().sum().item() for one in optimizer.state.values()]
    return [one.double().sum().item() for one in model.state_dict().values()] + moments


dist.init_process_group("gloo")
start = peers.restore(at_least=int(os.environ.get("AT_LEAST", "0")))
(folder / f"start-{attempt}-{rank}").write_text(json.dumps([start, state()]))
dist.barrier()
exec((folder / f"plan-{attempt}").read_text())
monitor.close()
dist.destroy_process_group()
"""

FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.manual_seed(attempt)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
peers = PeerState(monitor, model=model, optimizer=optimizer)
start = peers.restore()
assert start == (3 if attempt else None)


def whole():
    parts = [one.full_tensor().double().sum().item() for one in model.state_dict().values()]
    return parts + [one["exp_avg"].full_tensor().double().sum().item() for one in optimizer.state.values()]


if attempt:
    expected = json.loads((folder / "whole").read_text())
    assert whole() == expected, (whole(), expected)
    assert len(list(optimizer.state)) == 4
train(start or 0, 3)
assert peers.save(3) and peers.wait()
found = whole()
(folder / "whole").write_text(json.dumps(found)) if not rank else None
dist.barrier()
train(3, 5)
"""

SAVE_TWICE = """
train(0, 6)
assert peers.save(6) and peers.wait()
(folder / f"at-6-{rank}").write_text(json.dumps(state()))
dist.barrier()
train(6, 9)
assert peers.save(9) and peers.wait()
(folder / f"at-9-{rank}").write_text(json.dumps(state()))
dist.barrier()
train(9, 11)
"""

SAVE_AGAIN = """
train(start, 12)
assert peers.save(12) and peers.wait()
dist.barrier()
"""

DAMAGE = """
train(0, 6)
assert peers.save(6) and peers.wait()
(folder / f"at-6-{rank}").write_text(json.dumps(state()))
dist.barrier()
train(6, 9)
if rank == 1:
    import understudy.peer
    understudy.peer.sum_of = lambda content: "crc32:00000000"
assert peers.save(9) and peers.wait()
"""


def run(site: KeeperSite, nodes: list[str], plan: str, attempt: int) -> list[list[Any]]:
    """Step from which each rank went on, and its state."""
    (site.checkpoints / f"plan-{attempt}").write_text(plan)
    site.train_on(nodes, GANG, attempt)
    return [json.loads((site.checkpoints / f"start-{attempt}-{rank}").read_text()) for rank in range(len(nodes))]


def saved(site: KeeperSite, step: int, ranks: int) -> list[list[float]]:
    return [json.loads((site.checkpoints / f"at-{step}-{rank}").read_text()) for rank in range(ranks)]


def test_a_lost_node_costs_the_steps_since_the_last_save_and_two_lost_ones_a_checkpoint(site: KeeperSite) -> None:
    site.start("n1", "n2", "n3", "n4")
    assert [one[0] for one in run(site, ["n1", "n2", "n3"], SAVE_TWICE, 0)] == [None] * 3
    keepers = {node: exchange(site.keepers.socket(node), ()) for node in ("n1", "n2", "n3")}
    known = saves_in_memory({node: one for node, one in keepers.items() if one}, 7, os.getuid())
    assert [(one.step, one.places, one.against) for one in known][:1] == [(9, 2, "")]
    assert known[0].blocked_seconds is not None

    site.kill("n2")  # n4 takes its place
    found = run(site, ["n1", "n4", "n3"], SAVE_AGAIN, 1)
    assert found == [[9, state] for state in saved(site, 9, 3)]

    # buddies are the next ones of the gang: n1 has copied for n3, n4 for n1, n3 for n4
    site.kill("n4")
    site.kill("n3")
    site.start("n5", "n6")
    assert [one[0] for one in run(site, ["n1", "n5", "n6"], "", 2)] == [None] * 3


def test_a_damaged_part_is_refused_by_all_ranks_and_the_save_before_it_restored(site: KeeperSite) -> None:
    site.start("n1", "n2")
    run(site, ["n1", "n2"], DAMAGE, 0)
    assert run(site, ["n1", "n2"], "", 1) == [[6, state] for state in saved(site, 6, 2)]


def test_each_rank_of_a_sharded_model_gets_its_shard_again(site: KeeperSite) -> None:
    site.start("n1", "n2")
    run(site, ["n1", "n2"], FSDP, 0)
    run(site, ["n1", "n2"], FSDP, 1)


def test_without_a_keeper_the_training_goes_on_with_one_line_of_its_log(site: KeeperSite) -> None:
    site.start("n1")
    (site.checkpoints / "plan-0").write_text(
        "train(0, 2)\nassert peers.due(2, every=2)\nassert not peers.save(2)\nassert not peers.save(3)\n"
    )
    outputs = site.train_on(["n1", "n2"], GANG)
    assert outputs[1].count("nothing is saved in memory from this rank") == 1
    assert outputs[0].count("a rank of the gang has no keeper") == 1
