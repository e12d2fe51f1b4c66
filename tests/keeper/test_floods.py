"""What one user's processes hold open of a keeper leaves room for all others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.keeper.test_between_keepers import Munge, copier, fetch, holding, identity
from tests.waiting import wait_until
from understudy_agent.shares import NoRoomError, Pace
from understudy_keeper import proof
from understudy_keeper.copies import CONNECT_SECONDS, described
from understudy_keeper.places import Greetings, Places, Room, group_of
from understudy_keeper.proof import connect
from understudy_keeper.server import Keeper, Settings
from understudy_keeper.store import Store
from understudy_wire.addresses import EVERY
from understudy_wire.errors import ClosedError, ProtocolError
from understudy_wire.frames import Frames

USER, OTHER = 1000, 1001

Pair = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture
def munge() -> Munge:
    return Munge()


@pytest.fixture
def keeper(tmp_path: Path, munge: Munge) -> Iterator[Keeper]:
    made = Keeper(
        Settings(tmp_path / "keeper.sock", EVERY, 0, "::1", 1 << 20, 1 << 20, 1e9, 3600),
        identity(munge),
    )
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def link_pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as made:

        def make() -> tuple[socket.socket, socket.socket]:
            own, other = socket.socketpair()
            return made.enter_context(own), made.enter_context(other)

        yield make


def is_cut(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_strangers_at_many_addresses_leave_a_keeper_time_to_prove_itself(link_pair: Pair) -> None:
    greetings = Greetings(8, 2, Pace(100, 1.0))
    with contextlib.ExitStack() as held:
        links = {f"10.0.0.{number}": [link_pair(), link_pair()] for number in range(1, 5)}
        for address, pairs in links.items():
            for own, _ in pairs:
                held.enter_context(greetings.place(own, address))
        own, other = link_pair()
        held.enter_context(greetings.place(own, "10.0.9.9"))
        assert is_cut(links["10.0.0.1"][0][1]), "the oldest one of those that have most"
        for _ in range(20):
            held.enter_context(greetings.place(link_pair()[0], "10.0.0.1"))
        assert not is_cut(other)


def test_nodes_whose_keepers_are_known_have_greetings_of_their_own(link_pair: Pair) -> None:
    greetings = Greetings(4, 2, Pace(100, 1.0))
    greetings.note_proven("10.0.9.9")
    with contextlib.ExitStack() as held:
        own, other = link_pair()
        held.enter_context(greetings.place(own, "10.0.9.9"))
        for number in range(100):
            held.enter_context(greetings.place(link_pair()[0], f"10.0.0.{number}"))
        assert not is_cut(other)


def test_keepers_in_one_network_of_ipv6_do_not_make_room_for_each_other(link_pair: Pair) -> None:
    greetings = Greetings(8, 2, Pace(2, 0.01))
    known = [f"fd00:1:2:3::{number}" for number in range(1, 5)]
    with contextlib.ExitStack() as held:
        links = [link_pair() for _ in known]
        for address, (own, _) in zip(known, links, strict=True):
            greetings.note_proven(address)
            assert greetings.admits(address)
            held.enter_context(greetings.place(own, address))
        for number in range(100, 110):  # of a stranger with many addresses there
            held.enter_context(greetings.place(link_pair()[0], f"fd00:1:2:3::{number}"))
        assert not any(is_cut(other) for _, other in links)
        assert [greetings.admits(f"fd00:1:2:3::{number}") for number in range(100, 104)] == [True, True, False, False]
        assert greetings.admits(known[0])


def test_addresses_of_which_a_user_has_many_count_as_one() -> None:
    assert group_of("127.0.0.1") == group_of("127.99.1.2") == group_of("::1")
    assert group_of("fd00:1:2:3::1") == group_of("fd00:1:2:3:ffff::9") != group_of("fd00:1:2:4::1")
    assert group_of("fe80::1%eth0") == group_of("fe80::2%eth0")
    assert group_of("10.0.0.1") == group_of("::ffff:10.0.0.1") != group_of("10.0.0.2")

    assert group_of("") == ""


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_a_keeper_reaches_another_one_by_ipv6_and_by_ipv4(keeper: Keeper, munge: Munge, host: str) -> None:
    assert keeper.address.startswith("[::1]:"), "what its ranks report to the others"
    asked = described(holding(b"a part", store=keeper.store).parts_of(1000, 1)[0])
    target = copier(Store(1000, 1000), identity(munge))
    assert fetch(target, asked, f"{host}:{keeper.address.rpartition(':')[2]}") == b"a part"


def test_a_flood_of_one_address_has_no_threads_and_delays_no_other() -> None:
    greetings = Greetings(8, 2, Pace(3, 0.001))
    assert [greetings.admits("10.0.0.1") for _ in range(5)] == [True] * 3 + [False] * 2
    assert greetings.admits("10.0.0.2")


def test_a_user_that_comes_late_has_places_and_the_newest_of_another_make_room() -> None:
    displaced: list[str] = []
    places = Places(4, 4, displaced.append)
    for number in range(4):
        places.enter(f"a{number}", USER)
    places.enter("b", OTHER)
    assert displaced == ["a3"]
    with pytest.raises(NoRoomError):
        places.enter("a4", USER)


def test_silent_connections_at_eight_addresses_keep_no_keeper_out(keeper: Keeper, munge: Munge) -> None:
    keeper._greetings = Greetings(16, 2, Pace(100, 1.0))
    port = int(keeper.address.rpartition(":")[2])
    with contextlib.ExitStack() as held:
        links = [held.enter_context(silent(f"127.0.0.{number}", port)) for number in range(2, 10) for _ in range(2)]
        wait_until(lambda: sum(map(is_cut, links)) == len(links) - 2, "all have come, of which loopback has two places")
        with contextlib.closing(connect(keeper.address, identity(munge), CONNECT_SECONDS)) as frames:
            assert listed(frames, USER) == []


def test_connections_of_other_keepers_for_one_user_leave_room_for_those_of_others(keeper: Keeper, munge: Munge) -> None:
    """A user has his keepers connect to that of any node."""
    keeper._keepers = Places(4, 4, keeper._keepers._displace)
    caller = identity(munge)
    with contextlib.ExitStack() as held:
        for _ in range(4):
            frames = held.enter_context(contextlib.closing(connect(keeper.address, caller, CONNECT_SECONDS)))
            assert listed(frames, USER) == []
        late = held.enter_context(contextlib.closing(connect(keeper.address, caller, CONNECT_SECONDS)))
        assert listed(late, OTHER) == []
        with pytest.raises((ClosedError, OSError)):
            listed(frames, USER)
        assert listed(late, OTHER) == []


def test_a_user_has_this_node_follow_few_others(keeper: Keeper) -> None:
    """Each is a thread, which a name that is resolved slowly holds after its connection."""
    assert keeper._local is not None
    keeper._local.wards = Room(6, 5)
    with contextlib.ExitStack() as held:
        answers = []
        for _ in range(2):
            frames = held.enter_context(contextlib.closing(Frames(local_link(keeper))))
            for _ in range(3):
                frames.send({"type": "follow", "job_id": 1, "ranks": [], "keeper": "127.0.0.1:1"})
                answers.append(frames.receive())
    assert answers == [{}] * 5 + [{"error": "this keeper follows 64 others for a user, 512 in all"}]
    assert keeper._local is not None
    wards = keeper._local.wards
    wait_until(lambda: not wards._groups, "they end with their connections")


def test_what_a_user_names_in_place_of_a_keeper_does_not_hold_a_thread_for_ever(
    munge: Munge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a byte now and then."""
    monkeypatch.setattr(proof, "GREETING_SECONDS", 0.5)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                link.sendall(b"\x16\x03\x03\x40\x00")
                while not ended.wait(0.02):
                    link.sendall(b"\x02")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises((OSError, ProtocolError)):
                connect(f"127.0.0.1:{listener.getsockname()[1]}", identity(munge), CONNECT_SECONDS)
        finally:
            ended.set()
            dripping.join()


@contextlib.contextmanager
def silent(address: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), source_address=(address, 0)) as link:
        link.send(b"\x16")
        yield link


def local_link(keeper: Keeper) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(str(keeper._settings.socket))
    return link


def listed(frames: Frames, user_id: int) -> object:
    frames.send({"type": "list", "user_id": user_id, "job_id": 1, "known": [], "wait_seconds": 0})
    return frames.receive()["parts"]
