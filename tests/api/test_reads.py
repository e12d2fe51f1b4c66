"""What many readers cost the others: bounds in number, time and size."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.waiting import PATIENCE_SECONDS
from understudy_controlplane.api.readers import Readers
from understudy_controlplane.api.readers import reader as reader_of_task
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Limits
from understudy_controlplane.store.database import open_reader, reading

pytestmark = pytest.mark.integration

READERS = 40
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    server = {"database": new_database(tmp_path / "fleet.db"), "without_token": "reads"}
    config = b.config(mode="observe", server=server, limits={"reads_waiting_max": 8})
    with closing(compose(config, Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True))) as made:
        made.loop.tick()
        yield made


@contextmanager
def decisions_that_hang() -> Iterator[threading.Event]:
    """Until the event is set, every query of the table `decision` hangs."""
    end = threading.Event()

    def hang(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM decision" in statement:
            end.wait(2 * PATIENCE_SECONDS)

    event.listen(Engine, "before_cursor_execute", hang)
    try:
        yield end
    finally:
        end.set()
        event.remove(Engine, "before_cursor_execute", hang)


def test_readers_that_hang_delay_neither_the_loop_nor_the_health_check(plane: ControlPlane) -> None:
    loop_done = threading.Event()

    def query_of_the_loop() -> None:
        plane.stores.tickets.open_tickets()
        loop_done.set()

    async def read() -> tuple[int, list[int]]:
        transport = httpx.ASGITransport(plane.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            reads = [asyncio.create_task(client.get("/v1/decisions")) for _ in range(READERS)]
            await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_SECONDS)
            threading.Thread(target=query_of_the_loop, daemon=True).start()
            assert await asyncio.to_thread(loop_done.wait, PATIENCE_SECONDS), "the loop waits for a reader's connection"
            health = await asyncio.wait_for(client.get("/healthz"), PATIENCE_SECONDS)
            end.set()
            return health.status_code, sorted([(await one).status_code for one in reads])

    with decisions_that_hang() as end:
        health, answers = asyncio.run(read())
    assert health == 200
    at_once_and_waiting = 2 + 8
    assert answers == [200] * at_once_and_waiting + [503] * (READERS - at_once_and_waiting)


@pytest.fixture
def reader(database: str) -> Iterator[Engine]:
    engine = open_reader(database, 1, seconds_max=0.05)
    yield engine
    engine.dispose()


def test_a_read_that_takes_too_long_is_ended_and_the_next_one_has_its_own_time(reader: Engine) -> None:
    with reading(reader) as connection, pytest.raises(OperationalError, match=r"interrupted|statement timeout"):
        connection.execute(text(ENDLESS))
    with reading(reader) as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1


def test_a_reader_cannot_write(reader: Engine) -> None:
    with reader.connect() as connection, pytest.raises(DBAPIError, match=r"readonly|read-only"):
        connection.execute(text("DELETE FROM decision"))


def test_a_reader_on_postgresql_has_the_options_of_the_sites_url_too(postgres_url: str) -> None:
    """Such as the schema in which the tables are."""
    engine = open_reader(f"{postgres_url}&options=-csearch_path%3Dunderstudy", 1, seconds_max=7)
    with reading(engine) as connection:
        shown = [connection.execute(text(f"SHOW {name}")).scalar() for name in ("search_path", "statement_timeout")]
    engine.dispose()
    assert shown == ["understudy", "7s"]


def test_a_sender_that_reads_much_delays_only_itself() -> None:
    """Its reads wait, up to a share; those of another one come next, however many wait."""
    limits = Limits(reads_waiting_max=4, reads_waiting_per_token_max=3)
    readers, begin = Readers(1, limits), threading.Event()
    carried_out: list[str] = []

    async def read(sender: str) -> int:
        def content() -> None:
            begin.wait(PATIENCE_SECONDS)
            carried_out.append(sender)

        reader_of_task.set(sender)
        return (await readers.read(content)).status_code

    async def flood() -> list[int]:
        reads = [asyncio.create_task(read(sender)) for sender in (*["hard"] * 6, *["other"] * 2, "third")]
        await asyncio.sleep(0)
        begin.set()
        return list(await asyncio.gather(*reads))

    answers = asyncio.run(flood())
    readers.close()
    assert answers == [200] * 4 + [503] * 2 + [200] + [503] + [200], "four are in all, but each has one"
    assert carried_out == ["hard", "hard", "other", "third", "hard", "hard"]


def test_a_read_that_is_given_up_leaves_its_turn_to_the_next_one() -> None:
    readers, begin = Readers(1, Limits()), threading.Event()

    async def read(content: Callable[[], object]) -> int:
        return (await readers.read(content)).status_code

    async def give_up() -> int:
        reads = [asyncio.create_task(read(lambda: begin.wait(PATIENCE_SECONDS))) for _ in range(3)]
        await asyncio.sleep(0)
        reads[1].cancel()
        begin.set()
        return await asyncio.wait_for(reads[2], PATIENCE_SECONDS) + await asyncio.wait_for(
            read(lambda: None), PATIENCE_SECONDS
        )

    assert asyncio.run(give_up()) == 400
    readers.close()
