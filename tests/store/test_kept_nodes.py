"""The loop's records of nodes are those of the table, whichever way the table is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, update

from tests import builders as b
from tests.new_database import new_database
from understudy_controlplane.fleet.node import NodeRecord, NodeState
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause
from understudy_controlplane.store import tables
from understudy_controlplane.store.clock_set_back import set_times_back
from understudy_controlplane.store.database import StoreError, open_database
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.kept_nodes import NAMED_AT_ONCE, KeptNodes
from understudy_controlplane.store.node_records import write_records


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    yield engine
    engine.dispose()


def _suspect(engine: Engine) -> None:
    before = FleetStore(engine).nodes()["n1"]
    after = NodeRecord("n1", NodeState.SUSPECT, b.NOW, suspicions=(Suspicion(SuspicionCause.SLOW, b.NOW),))
    with engine.begin() as connection:
        write_records(connection, [(before, after)])


def _all_at_once(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(update(tables.node).values(weight=7))


WRITES: dict[str, Callable[[Engine], object]] = {
    "add_nodes": lambda engine: FleetStore(engine).add_nodes(["n9"], b.NOW),
    "note_seen": lambda engine: FleetStore(engine).note_seen(["n2"], ["n3"], b.NOW, {"n2": b.NOW - 5}),
    "drained": lambda engine: FleetStore(engine).drained(b.slurm_node("out"), b.NOW),
    "owned": lambda engine: FleetStore(engine).owned(b.slurm_node("out"), b.NOW),
    "settled": lambda engine: FleetStore(engine).settled("n1"),
    "shown_by": lambda engine: FleetStore(engine).shown_by("n1", b.NOW),
    "records": _suspect,
    "clock": lambda engine: set_times_back(engine, b.NOW - 60, 60.0),
    "all": _all_at_once,
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_is_read_again(engine: Engine, write: str) -> None:
    fleet, kept = FleetStore(engine), KeptNodes(engine)
    fleet.add_nodes(["n1", "n2", "n3", "out"], b.NOW)
    with engine.begin() as connection:
        out = NodeRecord("out", NodeState.QUARANTINED, b.NOW)
        write_records(connection, [(NodeRecord("out"), out)])
    before = kept.records()
    assert before == fleet.nodes()
    WRITES[write](engine)
    after = kept.records()
    assert after == fleet.nodes() != before, "it has changed something"
    assert all(after[name] is one for name, one in before.items() if after[name] == one)


def test_of_thousands_of_nodes_only_those_that_were_written_are_read(engine: Engine) -> None:
    fleet, kept, read = FleetStore(engine), KeptNodes(engine), list[str]()
    fleet.add_nodes([f"n{i}" for i in range(NAMED_AT_ONCE + 2)], b.NOW)
    kept.records()
    event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, text, *_: read.append(text))
    kept.records()
    assert read == [], "nothing was written"
    fleet.settled("n1")
    read.clear()
    kept.records()
    assert all("IN (?)" in text for text in read if "FROM node" in text)
    assert len(read) == 2, "the node and suspicions"
    fleet.note_seen([f"n{i}" for i in range(NAMED_AT_ONCE + 1)], [], b.NOW + 1, {})
    assert kept.records() == fleet.nodes()


def test_a_record_that_could_not_be_read_is_read_at_the_next_time(engine: Engine) -> None:
    fleet, kept = FleetStore(engine), KeptNodes(engine)
    fleet.add_nodes(["n1"], b.NOW)
    kept.records()
    fleet.settled("n1")

    def fail(_connection: object, _cursor: object, text: str, *_: object) -> None:
        if "FROM node" in text:
            raise StoreError("disk I/O error")

    event.listen(engine, "before_cursor_execute", fail)
    with pytest.raises(StoreError):
        kept.records()
    event.remove(engine, "before_cursor_execute", fail)
    assert kept.records()["n1"].drain_settled


def test_after_an_error_of_the_database_all_are_read_again(engine: Engine) -> None:
    """Another server may answer from then on, without what was written last."""
    fleet, kept, read = FleetStore(engine), KeptNodes(engine), list[str]()
    fleet.add_nodes(["n1"], b.NOW)
    fleet.settled("n1")
    kept.records()
    with engine.connect() as connection:  # as the other server has it
        connection.exec_driver_sql("UPDATE node SET drain_settled = 0")
        connection.commit()
    assert kept.records()["n1"].drain_settled, "no statement of the product"
    with pytest.raises(StoreError), engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1 FROM nowhere")
    assert not kept.records()["n1"].drain_settled
    event.listen(engine, "before_cursor_execute", lambda _connection, _cursor, text, *_: read.append(text))
    kept.records()
    assert read == []


def test_a_control_plane_that_begins_reads_all_of_them(engine: Engine) -> None:
    FleetStore(engine).add_nodes(["n1"], b.NOW)
    first = KeptNodes(engine)
    first.records()
    FleetStore(engine).settled("n1")
    assert KeptNodes(engine).records() == first.records() == FleetStore(engine).nodes()
