"""What PostgreSQL does otherwise than SQLite."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text

from tests import builders as b
from understudy_controlplane.observe.event_cache import EventCache
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import StoreError, one_view, open_database, reading
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.kept_nodes import KeptNodes

pytestmark = pytest.mark.integration


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_database(url)
    yield engine
    engine.dispose()


def test_an_event_that_is_committed_after_a_later_one_is_not_missed(engine: Engine) -> None:
    """A row has its number when it is written, and is seen when its transaction ends."""
    stopped, go_on = threading.Event(), threading.Event()

    def hold_first(_connection: Any) -> None:
        if not stopped.is_set():
            stopped.set()
            go_on.wait(10)

    def write(node: str) -> None:
        FactStore(engine).record(node, [b.xid_event(node, 79).event], b.NOW, lambda _: None)

    event.listen(engine, "commit", hold_first)
    first, second = threading.Thread(target=write, args=("n1",)), threading.Thread(target=write, args=("n2",))
    cache = EventCache(FactStore(engine), 60.0)
    first.start()
    assert stopped.wait(10)
    second.start()
    second.join(0.5)
    cache.refresh(b.NOW)
    go_on.set()
    first.join(10)
    second.join(10)
    cache.refresh(b.NOW)
    assert [len(cache.kernel_events(node, b.NOW)) for node in ("n1", "n2")] == [1, 1]


def test_the_options_of_the_sites_url_count_for_writers_too(url: str) -> None:
    """Such as the schema in which the tables are."""
    engine = open_database(f"{url}&options=-csearch_path%3Dunderstudy,public")
    with reading(engine) as connection:
        shown = [connection.execute(text(f"SHOW {name}")).scalar() for name in ("search_path", "lock_timeout")]
    engine.dispose()
    assert shown == ["understudy,public", "10s"]


def test_one_view_shows_one_moment(engine: Engine) -> None:
    fleet = FleetStore(engine)
    fleet.add_nodes(["n1"], b.NOW)
    with one_view(engine):
        assert set(fleet.nodes()) == {"n1"}
        other = threading.Thread(target=fleet.add_nodes, args=(["n2"], b.NOW))
        other.start()
        other.join()
        assert set(fleet.nodes()) == {"n1"}
    assert set(fleet.nodes()) == {"n1", "n2"}


def test_after_a_lost_connection_records_of_nodes_are_read_again(engine: Engine, url: str) -> None:
    """A standby server that takes over may lack what was written last."""
    fleet, kept = FleetStore(engine), KeptNodes(engine)
    fleet.add_nodes(["n1"], b.NOW)
    fleet.settled("n1")
    assert kept.records()["n1"].drain_settled
    other = open_database(url)
    with other.begin() as connection:
        connection.execute(text("UPDATE node SET drain_settled = false"))
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    other.dispose()
    with pytest.raises(StoreError):
        fleet.nodes()
    assert not kept.records()["n1"].drain_settled


def test_numbers_have_64_bits(engine: Engine) -> None:
    with reading(engine) as connection:
        for table in tables.metadata.sorted_tables:
            for column in table.primary_key.columns:
                if column.name == "id":
                    assert connection.execute(select(column).where(column < 2**63 - 1)).all() == []


@pytest.mark.parametrize("change", ["UPDATE audit SET who = 'x'", "DELETE FROM audit", "TRUNCATE audit"])
def test_the_audit_refuses_changes(engine: Engine, change: str) -> None:
    with pytest.raises(StoreError, match="append-only"), engine.begin() as connection:
        connection.execute(text(change))
