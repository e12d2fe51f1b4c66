"""No user and no node fills the database."""

from __future__ import annotations

from tests import builders as b
from understudy_controlplane.ingest.quotas import Quotas
from understudy_wire.facts import Anomaly, AnomalyKind, CheckpointShard, Fact, ShardFile

MIB = 1 << 20


def anomalies(count: int, user_id: int = 1000) -> list[Fact]:
    return [Anomaly(7, 0, 0, 4, AnomalyKind.LOSS_NAN, step, b.NOW, user_id=user_id) for step in range(count)]


def test_a_user_has_an_hours_bytes_at_once_and_as_many_in_each_hour() -> None:
    quotas = Quotas(MIB, MIB)
    kept, (why,) = quotas.admitted("n1", anomalies(3000), 0.0)
    assert 1000 < len(kept) < 2000, "a row costs more than its text"
    assert why == f"{3000 - len(kept)} facts of user 1000 on n1: 1 MiB in an hour are stored, and no more"
    assert quotas.admitted("n1", anomalies(1), 0.0)[0] == []
    later, _ = quotas.admitted("n1", anomalies(3000), 1800.0)
    assert abs(len(later) - len(kept) / 2) < 3
    again, _ = quotas.admitted("n1", anomalies(3000), 1800.0 + 3600.0)
    assert abs(len(again) - len(kept)) < 3


def test_it_takes_nothing_of_other_users_other_nodes_and_the_node_itself() -> None:
    quotas = Quotas(MIB, MIB)
    quotas.admitted("n1", anomalies(3000), 0.0)
    event = b.xid_event("n1", 79).event
    mixed = [*anomalies(1), *anomalies(1, user_id=2000), event]
    assert quotas.admitted("n1", mixed, 0.0)[0] == mixed[1:]
    assert quotas.admitted("n2", anomalies(1), 0.0) == (anomalies(1), [])


def test_what_was_not_stored_in_the_end_is_given_back() -> None:
    quotas = Quotas(MIB, MIB)
    facts = [*anomalies(100), b.xid_event("n1", 79).event]
    for second in range(100):
        assert quotas.admitted("n1", facts, float(second)) == (facts, [])
        quotas.give_back("n1", facts)


def test_the_default_refuses_nothing_of_a_gang_that_saves_every_minute() -> None:
    quotas = Quotas()
    files = tuple(ShardFile(f"model-{number:05}-of-00008.safetensors", 2**30, "crc32:00000000") for number in range(8))
    for minute in range(180):
        shards: list[Fact] = [
            CheckpointShard(
                7, 0, rank, 8192, minute, "/scratch/run/step", "a", 1, "", b.NOW, user_id=1000, more_files=files
            )
            for rank in range(8)
        ]
        assert quotas.admitted("n1", shards, minute * 60.0) == (shards, [])
