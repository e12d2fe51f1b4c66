from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace

import httpx
import pytest

from tests.agent.fake_control_plane import TOKEN, FakeControlPlane
from tests.waiting import PATIENCE_SECONDS
from understudy_agent.credentials import Ask, TokenFile
from understudy_agent.facts import FactQueue
from understudy_agent.uplink import (
    PROMPT_SECONDS,
    RestorePointError,
    RestorePointRequest,
    UnreachableError,
    Uplink,
    patience_after,
)
from understudy_wire.facts import KernelEvent
from understudy_wire.hardware import Gpu, GpuStatus, Host, Port
from understudy_wire.launcher import LauncherAnswer, LauncherPhase, LauncherReport, LauncherState
from understudy_wire.leader import HeardLeader
from understudy_wire.messages import WIRE_VERSION, Acknowledgement, Keeper, KeptSave, Report, RestorePoint
from understudy_wire.ranks import ProgramFiles, RankWindow
from understudy_wire.values import EPOCH_SECONDS_MAX


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


def report(**more: object) -> Report:
    fixed = {"version": WIRE_VERSION, "cluster": "c", "node": "n1", "boot_id": "b"}
    return Report(**(fixed | {"sequence": 0, "agent_started_at": 1.0, "sent_at": 0.0} | more))  # type: ignore[arg-type]


def kernel_event(sequence: int, text: str = "NVRM: Xid") -> KernelEvent:
    return KernelEvent(boot_id="b", sequence=sequence, at=0.0, text=text)


def with_uplink(
    urls: Sequence[str],
    facts: FactQueue,
    play: Callable[[Uplink], Awaitable[None]],
    credentials: TokenFile | None = None,
    request_timeout_seconds: float = 1.0,
) -> None:
    async def run() -> None:
        uplink = Uplink(urls, credentials or TokenFile(lambda: TOKEN), facts, request_timeout_seconds)
        try:
            await play(uplink)
        finally:
            await uplink.close()

    asyncio.run(run())


def filled(count: int) -> FactQueue:
    facts = FactQueue()
    for sequence in range(count):
        facts.put(kernel_event(sequence))
    return facts


def sequences(plane: FakeControlPlane) -> list[int]:
    return [fact.sequence for fact in plane.facts if isinstance(fact, KernelEvent)]


def test_facts_arrive_and_leave_the_queue(plane: FakeControlPlane) -> None:
    facts = filled(2)

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report(gpus=[Gpu(index=0, status=GpuStatus.OK)]))
        assert await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert sequences(plane) == [0, 1]
    assert len(facts) == 0
    assert [one.sequence for one in plane.reports] == [1, 2]
    assert plane.reports[0].sent_at > 1e9


def test_many_facts_go_in_several_reports_oldest_first(plane: FakeControlPlane) -> None:
    facts = filled(300)

    async def play(uplink: Uplink) -> None:
        await uplink.send(report())
        await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert [len(one.facts) for one in plane.reports] == [256, 44]
    assert sequences(plane) == list(range(300))


def test_no_fact_is_lost_while_the_control_plane_is_dead(plane: FakeControlPlane) -> None:
    facts = filled(1)

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report())
        plane.stop()
        facts.put(kernel_event(1))
        assert not await uplink.send(report())
        facts.put(kernel_event(2))
        assert not await uplink.send(report())
        plane.start()
        assert await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert sequences(plane) == [0, 1, 2]


def test_the_second_control_plane_takes_over_and_is_tried_first_from_then_on(plane: FakeControlPlane) -> None:
    with FakeControlPlane() as second:

        async def play(uplink: Uplink) -> None:
            assert await uplink.send(report())
            plane.stop()
            assert await uplink.send(report())
            plane.start()
            assert await uplink.send(report())

        with_uplink([plane.url, second.url], filled(0), play)
        assert (len(plane.reports), len(second.reports)) == (1, 2)


def test_nothing_of_a_control_plane_whose_lead_was_taken_is_obeyed_and_no_fact_is_lost_on_it(
    plane: FakeControlPlane,
) -> None:
    """PostgreSQL may be split: the older one answers, and stores what it is given, in a database of its own."""
    plane.leader, plane.unfit = "i 10", "an order of the older one"
    facts, answers = filled(0), list[Acknowledgement]()

    async def play(uplink: Uplink) -> None:
        uplink._on_acknowledged = answers.append
        assert await uplink.send(report())
        plane.stop()
        facts.put(kernel_event(1))
        assert await uplink.send(report())
        plane.start()
        second.stop()
        facts.put(kernel_event(2))
        assert not await uplink.send(report())
        with pytest.raises(UnreachableError):
            await uplink.launcher_orders(
                LauncherReport(WIRE_VERSION, "c", "n1", 0, LauncherState(1, 0, 0, LauncherPhase.RUNNING, ("n1",)))
            )
        second.start()
        assert await uplink.send(report())

    with FakeControlPlane() as second:
        second.leader = "i 11"
        with_uplink([plane.url, second.url], facts, play)
        assert sequences(second) == [1, 2]
    assert [one.unfit for one in answers] == ["an order of the older one", "", ""]


def test_each_of_two_installations_learns_of_the_other_and_the_agent_stays_with_its_own(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one refuses the agent's token, as a database without it does, and gives it one of its own."""
    monkeypatch.setattr("understudy_agent.uplink.LOOK_SECONDS", 0.0)
    plane.leader, answers = "i 10", list[Acknowledgement]()
    other_token = "token of the other one"

    async def play(uplink: Uplink) -> None:
        uplink._on_acknowledged = answers.append
        uplink._to_look = TokenFile(lambda: other_token)
        for _ in range(3):
            assert await uplink.send(report())
            assert uplink._looking is not None
            await uplink._looking

    with FakeControlPlane() as second:
        second.leader, second.token, second.unfit = "j 99", other_token, "an order of the other one"
        with_uplink([plane.url, second.url], filled(1), play)
        both = [HeardLeader("i", 10, plane.url), HeardLeader("j", 99, second.url)]
        assert [one.leaders for one in plane.reports] == [[], both, both]
        assert [(one.looks, one.facts) for one in second.reports] == 3 * [(True, [])]
        assert [one.leaders for one in second.reports] == [both[:1], both, both]
    assert [one.unfit for one in answers] == ["", "", ""]


def test_a_control_plane_that_has_taken_the_lead_is_found_while_the_one_before_answers(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy_agent.uplink.LOOK_SECONDS", 0.0)
    plane.leader = "i 10"

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report())
        assert uplink._looking is not None
        await uplink._looking
        assert await uplink.send(report())

    with FakeControlPlane() as second:
        second.leader = "i 11"
        with_uplink([plane.url, second.url], filled(0), play)
        assert [one.looks for one in second.reports] == [True, False]


def test_a_launcher_asks_the_control_plane_that_takes_the_reports(plane: FakeControlPlane) -> None:
    """The one before is frozen, and holds a poll of five seconds that it will not answer."""
    state = LauncherState(1, 0, 0, LauncherPhase.RUNNING, ("n1",))
    poll = LauncherReport(WIRE_VERSION, "c", "n1", 0, state, wait_seconds=20.0)
    plane.answer_launchers(LauncherAnswer(orders_version="v"))

    async def play(uplink: Uplink) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            asking = asyncio.create_task(uplink.launcher_orders(poll))
            await asyncio.sleep(0.1)
            assert await uplink.send(report())
            assert (await asking).orders_version == "v"

    with socket.create_server(("127.0.0.1", 0)) as frozen:
        frozen_url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        with_uplink([frozen_url, plane.url], filled(0), play, request_timeout_seconds=60.0)
    assert len(plane.launchers) == 1


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_transient_refusal_drops_nothing(plane: FakeControlPlane, status: int) -> None:
    plane.refuse = lambda _: (status, "later")
    facts = filled(2)

    async def play(uplink: Uplink) -> None:
        assert not await uplink.send(report())
        plane.refuse = lambda _: None
        assert await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert sequences(plane) == [0, 1]


def test_a_frozen_control_plane_that_was_prompt_keeps_no_fact_from_the_next(plane: FakeControlPlane) -> None:
    """Its kernel accepts the connection."""
    facts = filled(1)

    async def play(uplink: Uplink) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await uplink.send(report())

    with socket.create_server(("127.0.0.1", 0)) as frozen:
        frozen_url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        with_uplink([frozen_url, plane.url], facts, play, request_timeout_seconds=60.0)
    assert (sequences(plane), len(facts)) == ([0], 0)


def test_a_slow_control_plane_is_waited_for_where_no_other_one_answers(plane: FakeControlPlane) -> None:
    facts = filled(1)
    plane.refuse = lambda _: time.sleep(1.5 * PROMPT_SECONDS)

    async def play(uplink: Uplink) -> None:
        assert not await uplink.send(report())
        assert await uplink.send(report())

    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with_uplink([plane.url, closed_url], facts, play, request_timeout_seconds=60.0)
    assert len(facts) == 0


@pytest.mark.parametrize("prompt", [0, 1, 50])
def test_a_control_plane_that_stores_facts_slowly_is_given_its_time(
    prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many reports without facts it has answered at once meanwhile."""
    limits: list[float] = []
    commit_seconds = 1.5 * PROMPT_SECONDS

    class Timed(Uplink):
        async def _send_request(
            self, _method: str, _base: str, _path: str, body: bytes | None, limit: httpx.Timeout, _own: object
        ) -> httpx.Response:
            took = commit_seconds if body is not None and b"NVRM" in body else 0.0
            limits.append(limit.read or 0.0)
            if took > limits[-1]:
                raise httpx.ReadTimeout("")
            clock.at += took
            return httpx.Response(200, json={"stored": 1})

    async def run() -> None:
        facts = filled(1)
        uplink = Timed(["http://a", "http://b"], TokenFile(lambda: TOKEN), facts, 5.0)
        assert not await uplink.send(report())
        assert await uplink.send(report())
        for _ in range(prompt):
            assert await uplink.send(report())
            assert limits[-1] < commit_seconds, "a frozen one is found soon all the same"
        tried = len(limits)
        facts.put(kernel_event(1))
        assert await uplink.send(report())
        assert len(limits) == tried + 1, "it was stored once"
        await uplink.close()

    clock = SimpleNamespace(at=0.0)
    virtual = SimpleNamespace(monotonic=lambda: clock.at, time=time.time)
    monkeypatch.setattr("understudy_agent.uplink.time", virtual)
    asyncio.run(run())


def test_patience_falls_slowly() -> None:
    """One answer that came at once says little about the next."""
    slow = patience_after(PROMPT_SECONDS, 1.5)
    assert slow == 3.0
    once = patience_after(slow, 0.0)
    assert 1.5 < once < slow
    for _ in range(50):
        once = patience_after(once, 0.0)
    assert once == PROMPT_SECONDS


def test_a_fact_on_which_the_control_plane_fails_delays_the_others_and_is_not_lost(plane: FakeControlPlane) -> None:
    def fail(report: Report) -> tuple[int, str] | None:
        return (500, "a defect") if kernel_event(2) in report.facts else None

    plane.refuse = fail
    facts = filled(40)

    async def play(uplink: Uplink) -> None:
        for _ in range(30):
            await uplink.send(report())
        assert facts.oldest(9) == [kernel_event(2)]
        plane.refuse = lambda _: None
        assert await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert sorted(sequences(plane)) == list(range(40))


def test_one_refused_fact_does_not_hold_up_the_others(plane: FakeControlPlane) -> None:
    results: list[str | None] = []
    facts = filled(2)
    facts.put(kernel_event(2, "poison"), results.append)
    facts.put(kernel_event(3))

    def refuse(report: Report) -> tuple[int, str] | None:
        texts = [fact.text for fact in report.facts if isinstance(fact, KernelEvent)]
        return (400, "cannot store that") if "poison" in texts else None

    plane.refuse = refuse

    async def play(uplink: Uplink) -> None:
        await uplink.send(report())
        assert await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert sequences(plane) == [0, 1, 3]
    assert len(facts) == 0
    assert "cannot store that" in (results[0] or "")


def test_facts_are_kept_when_the_report_itself_is_refused(plane: FakeControlPlane) -> None:
    plane.refuse = lambda _: (400, "wire version 1 is not supported here")
    facts = filled(3)

    async def play(uplink: Uplink) -> None:
        assert not await uplink.send(report())
        assert not await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert len(facts) == 3


@pytest.mark.parametrize(
    ("what", "telemetry"),
    [
        ("gpus", [Gpu(index=0, status=GpuStatus.OK)]),
        ("ports", [Port("mlx5_0", 1)]),
        ("host", Host(memory_total_bytes=1)),
        ("nvml_silent_seconds", 12.0),
        ("nvml_unkillable", True),
        ("problems", ["a problem"]),
    ],
)
def test_facts_are_accepted_when_the_telemetry_is_refused(
    plane: FakeControlPlane, what: str, telemetry: object
) -> None:
    plane.refuse = lambda report: (400, f"{what} is not known here") if getattr(report, what) else None
    facts = filled(2)

    async def play(uplink: Uplink) -> None:
        assert not await uplink.send(report(**{what: telemetry}))

    with_uplink([plane.url], facts, play)
    assert sequences(plane) == [0, 1]


def test_no_report_is_larger_than_the_wire_allows(plane: FakeControlPlane) -> None:
    facts = FactQueue()
    for sequence in range(200):
        facts.put(kernel_event(sequence, "ü" * 2048))
    window = RankWindow(job_id=1, restart_count=0, rank=0, world_size=1, self_seconds=[0.123456] * 512)

    async def play(uplink: Uplink) -> None:
        for _ in range(9):
            assert await uplink.send(report(ranks=[window] * 100))

    with_uplink([plane.url], facts, play)
    assert sequences(plane) == list(range(200))
    assert plane.reports[-1].ranks  # without facts there is room for telemetry again


def test_what_users_give_a_keeper_makes_no_report_too_large(plane: FakeControlPlane) -> None:
    """A rank names as many ranks as it likes, and parts need no room: 128 saves of 1024 ranks are a megabyte."""
    save = KeptSave(2**31 - 1, 1000, 0, 0, 1, 2**31 - 1, [2**31 - 1] * 1024, 1, 1.0)
    programs = [ProgramFiles(7, 0, 1000, "x" * 32_768)] * 2
    sent = report(keeper=Keeper(1, 2, saves=[save] * 128), programs=programs, problems=["x" * 2048] * 32)

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(sent)

    with_uplink([plane.url], filled(1), play)
    (received,) = plane.reports
    assert received.keeper is not None and received.keeper.bytes_held == 1
    assert received.programs == programs
    assert 0 < len(received.keeper.saves) < 128
    assert sequences(plane) == [0]


def test_a_clock_after_the_last_year_sends_the_last_year(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy_agent.uplink.time.time", lambda: 5e9)

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report())

    with_uplink([plane.url], filled(1), play)
    assert plane.reports[-1].sent_at == EPOCH_SECONDS_MAX


def test_a_new_token_in_the_file_is_used(plane: FakeControlPlane) -> None:
    tokens = ["old", TOKEN]

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report())

    own = TokenFile(lambda: tokens.pop(0) if len(tokens) > 1 else tokens[0])
    with_uplink([plane.url], filled(1), play, own)
    assert sequences(plane) == [0]


class Renewing(TokenFile):
    answered = b""

    def is_due(self) -> bool:
        return not self.answered

    async def renew(self, _refused: str, ask: Ask) -> bool:
        self.answered = await ask("GET", "/v1/restore-point?job_id=1&restart_count=0", None)
        return False


def test_a_request_for_the_next_token_is_sent_with_this_one(plane: FakeControlPlane) -> None:
    """All nodes behind one address would otherwise share the rate of that address."""
    plane.restore_points[1, 0] = (7, "/c/7")
    own = Renewing(lambda: TOKEN)

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report())

    with_uplink([plane.url], filled(1), play, own)
    assert (b"/c/7" in own.answered, plane.authorization) == (True, f"Bearer {TOKEN}")


def test_a_restore_point_is_waited_for(plane: FakeControlPlane) -> None:
    async def play(uplink: Uplink) -> None:
        request = asyncio.create_task(uplink.restore_point(RestorePointRequest(7, 1, 0, 1000)))
        await asyncio.sleep(0.3)
        assert not request.done()
        plane.stop()
        await asyncio.sleep(0.3)
        plane.restore_points[7, 1] = (30, "/ckpt/30")
        plane.start()
        assert await asyncio.wait_for(request, PATIENCE_SECONDS) == RestorePoint(7, 1, 30, "/ckpt/30")

    with_uplink([plane.url], filled(0), play)


def test_an_answer_that_cannot_be_decoded_is_an_error_at_once(plane: FakeControlPlane) -> None:
    plane.restore_points[7, 1] = ("nonsense", "/ckpt/30")  # type: ignore[assignment]

    async def play(uplink: Uplink) -> None:
        with pytest.raises(RestorePointError, match="cannot be decoded"):
            await uplink.restore_point(RestorePointRequest(7, 1, 0, 1000))

    with_uplink([plane.url], filled(0), play)


def test_what_only_a_newer_control_plane_answers_is_ignored_and_logged_once(
    plane: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    plane.more = {"advice": {"reboot": True}}
    facts = filled(1)

    async def play(uplink: Uplink) -> None:
        assert await uplink.send(report())
        assert await uplink.send(report())

    with_uplink([plane.url], facts, play)
    assert len(facts) == 0
    assert [vars(record)["fields"]["what"] for record in caplog.records if record.name != "httpx"] == [
        "field Acknowledgement.advice"
    ]
