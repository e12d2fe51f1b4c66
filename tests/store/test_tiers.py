"""A checkpoint on disks of nodes is restored only where the new gang sees it, and a nearer copy by the ranks that have
it.
"""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import Engine

from tests import builders as b
from tests.store.test_anomalies import StoodClock
from understudy_controlplane.fleet.job import Attempt, KnownJob, RankPlace, RestoreAnswer
from understudy_controlplane.recover.restore import (
    LOOK_AGAIN_SECONDS,
    LOOK_SECONDS_MAX,
    NOT_STARTED,
    STRANGERS_SECONDS_MAX,
    RestorePoints,
)
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_wire.facts import CheckpointShard, Fact, Layout, RankStarted, RestoreOutcome, RestoreReport, Tier

JOB = b.job()
FIRST = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
SWAPPED = FIRST | {2: "n3", 3: "n3"}
NEXT = Attempt(0, 1)


class Site:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.clock = engine, StoodClock()
        self.known: KnownJob = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        self.points = RestorePoints(CheckpointStore(engine), FleetStore(engine), self.clock)
        self.start(FIRST, Attempt(0))

    def record(self, node: str, *facts: Fact) -> None:
        own = [msgspec.structs.replace(fact, user_id=JOB.slurm.user_id) for fact in facts]
        assert FactStore(self.engine).record(node, own, b.NOW, lambda _: self.known) == []

    def start(self, gang: dict[int, str], attempt: Attempt = NEXT) -> None:
        for rank, node in gang.items():
            started = RankStarted(JOB.key.job_id, 0, rank, 4, b.NOW, 10 + rank, launch=attempt.launch)
            self.record(node, started)

    def save(self, step: int, tier: Tier, layout: Layout = Layout.FIXED, gang: dict[int, str] | None = None) -> None:
        for rank, node in (gang or FIRST).items():
            path, file = f"/{tier}/{step}", f"{rank}.pt"
            shard = CheckpointShard(
                JOB.key.job_id, 0, rank, 4, step, path, file, 1, "", b.NOW, layout=layout, tier=tier
            )
            self.record(node, shard)

    def looked(self, node: str, step: int, tier: Tier, outcome: RestoreOutcome) -> None:
        report = RestoreReport(JOB.key.job_id, 0, 2, 4, step, f"/{tier}/{step}", outcome, b.NOW, launch=NEXT.launch)
        self.record(node, report)

    def looker(self, node: str) -> str:
        return self.points.looker(self.known, NEXT, node, 4)

    def path(self) -> str:
        return self.points.give(self.known, NEXT, 4).path

    def places(self, gang: dict[int, str]) -> list[RankPlace]:
        return [self.points.place(self.known, NEXT, rank, node) for rank, node in gang.items()]


@pytest.fixture
def site(engine: Engine) -> Site:
    return Site(engine)


def test_it_is_chosen_where_all_ranks_are_on_the_nodes_that_wrote_their_parts(site: Site) -> None:
    site.save(20, Tier.SHARED)
    site.save(40, Tier.LOCAL)
    site.start(FIRST)
    assert site.looker("n1") == "n1"
    site.looked("n1", 40, Tier.LOCAL, RestoreOutcome.SEEN)
    assert site.looker("n2") == ""
    assert (site.path(), set(site.places(FIRST))) == ("/local/40", {RankPlace()})


def test_a_node_that_did_not_write_it_looks_for_the_part_of_its_ranks(site: Site) -> None:
    """Not any file: the folder may be there."""
    site.save(20, Tier.SHARED)
    site.save(40, Tier.LOCAL)
    site.start({0: "n1", 1: "n1"})
    assert site.looker("n1") == NOT_STARTED, "which nodes the gang has is not known yet"
    site.start({2: "n3", 3: "n3"})
    site.clock.seconds += LOOK_AGAIN_SECONDS
    assert site.looker("n1") == "n3"
    site.looked("n1", 40, Tier.LOCAL, RestoreOutcome.SEEN)
    assert site.looker("n1") == "n3", "n1 wrote it"
    assert site.looker("n3") == "n3"
    assert site.points.place(site.known, NEXT, 2, "n3").look_file == "2.pt"
    site.looked("n3", 40, Tier.LOCAL, RestoreOutcome.MISSING)
    assert (site.looker("n3"), site.path()) == ("n3", "/shared/20")
    site.looked("n3", 20, Tier.SHARED, RestoreOutcome.SEEN)
    assert [site.looker(node) for node in ("n1", "n3")] == ["", ""]


def test_a_new_node_that_sees_it_settles_it(site: Site) -> None:
    """The type of a file system is no proof: a node may export its disk to the others."""
    site.save(40, Tier.LOCAL)
    site.start(SWAPPED)
    assert site.looker("n3") == "n3"
    site.looked("n3", 40, Tier.LOCAL, RestoreOutcome.SEEN)
    assert (site.looker("n1"), site.path()) == ("", "/local/40")


@pytest.mark.parametrize(("shared", "answer"), [(True, RestoreAnswer.RESTORE), (False, RestoreAnswer.UNKNOWN)])
def test_what_the_new_node_does_not_look_for_is_passed_over_and_never_the_beginning_instead(
    site: Site, shared: bool, answer: RestoreAnswer
) -> None:
    if shared:
        site.save(20, Tier.SHARED)
    site.save(40, Tier.LOCAL)
    site.start(SWAPPED)
    assert site.looker("n1") == "n3"
    site.clock.seconds += STRANGERS_SECONDS_MAX
    site.looker("n1")
    decision = site.points.give(site.known, NEXT, 4)
    assert decision.answer is answer
    assert "step 40: it lies on disks of nodes that this attempt does not have" in decision.why


def test_ranks_that_never_start_hold_nothing_up(site: Site) -> None:
    site.save(40, Tier.LOCAL)
    site.start({0: "n1", 1: "n1", 2: "n2"})
    assert site.looker("n1") == NOT_STARTED
    site.clock.seconds += LOOK_SECONDS_MAX
    assert site.looker("n1") == "n1"


def test_each_rank_restores_its_own_copy_and_the_new_node_the_shared_one(site: Site) -> None:
    site.save(40, Tier.LOCAL)
    site.save(40, Tier.SHARED)
    site.start(SWAPPED)
    assert site.path() == "/shared/40"
    own = [RankPlace("", "/local/40", f"{rank}.pt") for rank in (0, 1)]
    assert site.places(SWAPPED) == [*own, RankPlace(), RankPlace()]
    site.looked("n1", 40, Tier.LOCAL, RestoreOutcome.FAILED)
    again = RestorePoints(CheckpointStore(site.engine), FleetStore(site.engine), site.clock)
    assert again.place(site.known, Attempt(0, 2), 0, "n1") == RankPlace(), "once is enough where there is another copy"


@pytest.mark.parametrize("layout", [Layout.RESHARDABLE, Layout.UNKNOWN])
def test_a_layout_of_which_a_rank_may_read_any_file_has_no_copy_for_single_ranks(site: Site, layout: Layout) -> None:
    site.save(40, Tier.LOCAL, layout)
    site.save(40, Tier.SHARED, layout)
    assert set(site.places(FIRST)) == {RankPlace()}


def test_ranks_that_changed_their_nodes_and_files_of_all_are_looked_for(site: Site) -> None:
    site.save(40, Tier.LOCAL)
    site.start({0: "n2", 1: "n1", 2: "n1", 3: "n2"})
    assert site.looker("n9") == "n1"
    assert [site.points.place(site.known, NEXT, rank, node).look_file for rank, node in ((2, "n1"), (0, "n2"))] == [
        "2.pt",
        "0.pt",
    ]


def test_a_file_for_any_rank_has_to_be_seen_by_each_node_but_its_own(site: Site) -> None:
    site.save(40, Tier.LOCAL, Layout.RESHARDABLE)
    site.start(FIRST)
    assert site.looker("n2") == "n2"
    assert site.points.place(site.known, NEXT, 3, "n2").look_file == "0.pt"
