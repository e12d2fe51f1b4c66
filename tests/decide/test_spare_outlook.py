"""What-if: which spare a gang would get, and why not the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.config import Config, SignalKind
from understudy_controlplane.decide.spare_outlook import SpareOutlook, outlook
from understudy_controlplane.fleet.maintenance import Maintenance
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.hardware import Stuck, StuckProcess

CONFIG = b.config(spares={"no_spare": "wait"}, signals={"effects": {"leak": "block"}})
GANG = b.job(nodes=["n1", "n2"], priority=5, account="physics")


def seen(*nodes: NodeView, **values: Any) -> Snapshot:
    return b.snapshot(*nodes, spares=("n6", "n7"), **{"jobs": [GANG], **values})


def asked(snapshot: Snapshot, config: Config = CONFIG) -> SpareOutlook:
    return outlook(snapshot, next(iter(snapshot.jobs.values())), "n2", config)


def test_it_names_the_spare_that_the_gang_would_get_and_changes_nothing() -> None:
    found = asked(seen())
    assert (found.moves, found.taken, found.words) == (True, ("n6",), "job 7 moves to n6")
    assert [(one.node, one.fits, one.words) for one in found.candidates] == [("n6", True, ""), ("n7", True, "")]
    with_idle = asked(seen(), b.config())
    assert [one.node for one in with_idle.candidates if not one.is_spare] == ["n3", "n4", "n5", "n8"]


def spare(**values: Any) -> NodeView:
    return b.node("n6", is_spare=True, **values)


WORK = Maintenance(3, ("n6",), ("n6",), "firmware", "alice", b.NOW - 60, b.NOW + 60, 1)
TAKEN = StuckProcess(4711, 1000, "python", Stuck.OUTSIDE, 180.0, gpus=["n1"])
LEAK = SiteSignal("bms", "k", SignalKind.LEAK, ("n6",), "wet", 1, b.NOW - 5, b.NOW + 60)


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (seen(b.node("n6", NodeState.SUSPECT, is_spare=True)), "it is suspect"),
        (seen(spare(heard_at=None)), "its agent does not report"),
        (seen(spare(slurm=b.slurm_node("n6", flags=("DRAIN",)))), "Slurm cannot use it now"),
        (
            seen(spare(slurm=b.slurm_node("n6", flags=("BLOCKED",)))),
            "another job has its block or leaf switch to itself",
        ),
        (seen(signals=(LEAK,)), "bms reports leak: wet: no spare is taken from there"),
        (seen(maintenances=(WORK,)), "it is under maintenance"),
        (
            seen(spare(processes=(TAKEN,))),
            "process 4711 (python; user id 1000) has GPU n1 open and is in no job of Slurm",
        ),
        (seen(spare_choices={"n6": False}), "an operator wants it out of the pool"),
        (seen(jobs=[GANG, b.job(job_id=9, nodes=["n6"], managed=False)]), "job 9 is on it"),
        (seen(spare(slurm=replace(b.slurm_node("n6"), partitions=("cpu",)))), "it is not in partition train"),
        (seen(spare(slurm=replace(b.slurm_node("n6"), gres="gpu:4"))), "it has gpu:4 in Slurm, and n2 none"),
        (seen(jobs=[b.job(nodes=["n1", "n2"], excluded_nodes=("n6",))]), "the job excludes it"),
    ],
)
def test_it_names_why_a_spare_of_the_pool_does_not_fit(snapshot: Snapshot, why: str) -> None:
    found = asked(snapshot)
    assert [(one.node, one.fits, one.words) for one in found.candidates] == [("n6", False, why), ("n7", True, "")]
    assert found.taken == ("n7",)


def with_features(name: str, *features: str) -> NodeView:
    return b.node(name, slurm=replace(b.slurm_node(name), features=frozenset(features)), is_spare=name != "n2")


@pytest.mark.parametrize(
    ("asks", "has", "why"),
    [
        ("h100", ("h100", "rack2"), ""),
        ("h100&ib", ("h100",), "it lacks ib, which the job asks for"),
        ("h100|a100", ("h100", "rack2"), "it lacks features of n2"),
        ("h100|a100", ("h100", "ib", "rack1", "new"), ""),
        ("", (), ""),
    ],
)
def test_a_spare_has_the_features_that_the_job_asks_for(asks: str, has: tuple[str, ...], why: str) -> None:
    """Only Slurm knows which nodes "a|b" permits: there the spare has to have the features of the node before."""
    nodes = (with_features("n6", *has), with_features("n2", "h100", "ib", "rack1"))
    found = asked(seen(*nodes, jobs=[b.job(nodes=["n1", "n2"], features=asks)]))
    assert (found.candidates[0].node, found.candidates[0].words) == ("n6", why)


def with_gpus(name: str, model: str, gibibytes: float, gres: str = "gpu:8") -> NodeView:
    gpus = (b.gpu(0, name=model, memory_total_bytes=int(gibibytes * 2**30)),)
    slurm = replace(b.slurm_node(name), gres=gres)
    return b.node(name, slurm=slurm, gpus=gpus, is_spare=name == "n6")


A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("spares_own", "lost", "why"),
    [
        ((A100, 80, "gpu:a100:8"), (A100, 80, "gpu:h100:8"), "it has gpu:a100:8 in Slurm, and n2 gpu:h100:8"),
        (("NVIDIA L40S", 45), (A100, 80), "it has GPUs L40S, and n2 A100-SXM4-80GB"),
        (("A100-SXM4-80GB", 75), (A100, 80), ""),
        (("", 0), (A100, 80), ""),
        ((A100, 80), ("", 0), ""),
        (("NVIDIA A100-SXM4-40GB", 40, "gpu:a100:8"), (A100, 80, "gpu:a100:8"), "its GPUs have 40 GiB of memory, and "),
        ((A100, 80, "gpu:a100:8"), ("NVIDIA A100-SXM4-40GB", 40, "gpu:a100:8"), ""),
    ],
)
def test_a_spare_has_gpus_of_the_type_and_the_memory_of_those_before(
    spares_own: tuple[Any, ...], lost: tuple[Any, ...], why: str
) -> None:
    """Slurm's type counts where there is one, and else NVML's name; with ECC the memory is a little less."""
    found = asked(seen(with_gpus("n6", *spares_own), with_gpus("n2", *lost)))
    assert found.candidates[0].words.startswith(why)
    assert found.candidates[0].fits is not bool(why)


LARGE: dict[str, Any] = {"cpus": 128, "memory_mb": 512_000}


@pytest.mark.parametrize(
    ("has", "asks", "why"),
    [
        (LARGE, {}, ""),
        (LARGE | {"memory_mb": 500_000}, {}, ""),
        (LARGE | {"memory_mb": 256_000}, {}, "it has 256000 MB of memory of 486400 needed"),
        (LARGE | {"memory_mb": 256_000}, {"memory_mb": 200_000}, ""),
        (LARGE, {"memory_mb": 600_000}, "it has 512000 MB of memory of 600000 needed"),
        (LARGE, {"tmp_disk_mb": 10}, "it has 0 MB of temporary disk of 10 needed"),
        (LARGE | {"cpus": 64}, {}, "it has 64 CPUs of 128 needed"),
    ],
)
def test_a_spare_has_the_room_that_the_job_needs(has: dict[str, Any], asks: dict[str, Any], why: str) -> None:
    nodes = [spare(slurm=replace(b.slurm_node("n6"), **has))]
    nodes += [b.node(name, slurm=replace(b.slurm_node(name), **LARGE), is_spare=name == "n7") for name in ("n2", "n7")]
    found = asked(seen(*nodes, jobs=[b.job(nodes=["n1", "n2"], **asks)]))
    assert found.candidates[0].words == why
    assert found.candidates[0].fits is not bool(why)


def test_it_names_gangs_that_wait_and_would_come_before_it() -> None:
    waiting = b.job(job_id=8, nodes=["n3"], priority=500)
    later = b.job(job_id=9, nodes=["n4"], priority=1)
    nodes = [b.node(name, NodeState.QUARANTINED) for name in ("n3", "n4")]
    assert asked(seen(*nodes, jobs=[GANG, waiting, later])).before == (8,)


def test_without_a_spare_the_gang_stays_and_the_answer_names_why() -> None:
    found = asked(seen(spare(heard_at=None), b.node("n7", NodeState.QUARANTINED, is_spare=True)))
    assert (found.moves, found.taken) == (False, ())
    assert "no fitting spare for job 7" in found.words


def reserving(**reserved: int) -> Config:
    holders = {name.replace("_", " ", 1): count for name, count in reserved.items()}
    return b.config(spares={"no_spare": "wait", "reserved": holders})


def test_a_spare_that_is_reserved_for_another_is_left_and_its_holder_is_named() -> None:
    found = asked(seen(), reserving(user_bob=1))
    assert (found.moves, found.taken) == (True, ("n6",))
    assert [(one.node, one.fits, one.words) for one in found.candidates] == [
        ("n6", True, ""),
        ("n7", False, "it is reserved for user bob"),
    ]
    none_left = asked(seen(), reserving(user_bob=1, job_pretrain=4))
    assert (none_left.moves, none_left.taken) == (False, ())
    assert "0 free, 1 needed" in none_left.words
    assert "; 2 more are reserved for user bob, job pretrain" in none_left.words


def test_the_holder_of_a_reservation_gets_what_others_leave() -> None:
    for holder in (f"user_{GANG.slurm.user}", f"account_{GANG.slurm.account}", f"job_{GANG.slurm.name}"):
        assert asked(seen(), reserving(**{holder: 2})).taken == ("n6",)


def test_a_reservation_for_neither_a_user_nor_an_account_nor_a_job_is_refused() -> None:
    for wrong in ({"team physics": 1}, {"account ": 1}, {"user ": 1}, {"user bob": -1}):
        with pytest.raises(ValueError, match="user NAME"):
            b.config(spares={"reserved": wrong})
