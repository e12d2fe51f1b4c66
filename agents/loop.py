"""The agent: joins the readers, the ranks' socket and the uplink.

Reports go out in the rhythm of the GPU pictures, and at once when there is a new fact. A fact never waits for
a picture: it goes with the last one, and the next picture, taken right after, follows by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from agents.config import Config, read_boot_id, read_token
from agents.facts import FactQueue, Settle
from agents.hooks.records import Gone, HookRecords
from agents.hooks.verdict import VerdictFile
from agents.log import fields, log
from agents.questions import SharedQuestions
from agents.ranks import RankServer
from agents.sample.gpus import GpuSampler
from agents.sample.kernel_log import KernelLog, open_source
from agents.sample.nvml import GpuReader, NoGpus, Nvml
from agents.uplink import Uplink
from agents.windows import WindowBuffer
from agents.wire import TEXT_CHARACTERS_MAX, WIRE_VERSION, Fact, KernelEvent, Report

COALESCE_SECONDS = 0.01
"""Facts come in bursts: what follows within this goes with the first."""

FAREWELL_SECONDS = 2.0
PROBLEMS_MAX = 32


class Agent:
    """One per node. Construct, run() in an event loop, stop() from a signal handler of that loop."""

    def __init__(self, config: Config, gpu_reader: GpuReader | None = None) -> None:
        """`gpu_reader` stands in for NVML. Raises ConfigError when token or boot id cannot be read."""
        self._config = config
        self._boot_id = read_boot_id(config)
        self._started_at = time.time()
        self._facts = FactQueue()
        self._windows = WindowBuffer()
        self._kernel_log = KernelLog(open_source(config.kernel_log), self._boot_id)
        self._verdict = VerdictFile(config.run_directory / "verdict")
        self._records = HookRecords(config.run_directory, self._put, self._on_gone)
        self._uplink = Uplink(
            config.control_plane_urls,
            lambda: read_token(config),
            self._facts,
            config.request_timeout_seconds,
            on_unfit=self._verdict.note,
        )
        self._ranks = RankServer(
            config.socket, self._facts, self._windows, SharedQuestions(self._uplink.restore_point), self._on_fact
        )
        self._gpu_reader = gpu_reader or (Nvml() if config.nvml.enabled else NoGpus())
        self._due = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Until stop(). Raises SocketInUseError or OSError when the ranks' socket cannot be made."""
        await self._ranks.start()
        sampler = GpuSampler(self._gpu_reader, self._config.report_interval_seconds, _from_thread(self._due.set))
        sampler.start()
        log.info(
            "agent_started",
            extra=fields(
                cluster=self._config.cluster,
                node=self._config.node,
                boot_id=self._boot_id,
                control_planes=",".join(self._config.control_plane_urls),
                socket=self._config.socket,
            ),
        )
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._kernel_log.follow(lambda events: self._take(events, sampler)))
                reporting = group.create_task(self._report(sampler))
                following = group.create_task(self._records.follow())
                await self._stopping.wait()
                reading.cancel()
                following.cancel()
                reporting.cancel()
        finally:
            sampler.stop()
            await self._say_farewell(sampler)
            await self._ranks.stop()
            await self._uplink.close()
            log.info("agent_stopped", extra=fields(facts_unsent=len(self._facts)))

    def stop(self) -> None:
        self._stopping.set()

    def _on_fact(self) -> None:
        self._due.set()

    def _put(self, fact: Fact, settle: Settle) -> None:
        self._facts.put(fact, settle)
        self._due.set()

    def _on_gone(self, gone: Gone) -> None:
        """Its last step times go out at once, while the control plane still takes them."""
        self._ranks.forget(gone.job_id, gone.at)
        self._due.set()

    def _take(self, events: list[KernelEvent], sampler: GpuSampler) -> None:
        for event in events:
            log.warning("kernel_event", extra=fields(sequence=event.sequence, xid=event.xid, text=event.text))
            self._facts.put(event)
        self._due.set()
        sampler.take_now()

    async def _report(self, sampler: GpuSampler) -> None:
        # Longer than the interval: as a rule the sampler's picture calls, and the clock only when NVML hangs.
        patience_seconds = 1.5 * self._config.report_interval_seconds
        while True:
            try:
                async with asyncio.timeout(patience_seconds):
                    await self._due.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(COALESCE_SECONDS)
            self._due.clear()
            before = len(self._facts)
            taken = await self._uplink.send(self._build(sampler))
            if taken and before and len(self._facts):
                self._due.set()  # more facts than one report carries

    async def _say_farewell(self, sampler: GpuSampler) -> None:
        """One last attempt for facts that nobody would repeat."""
        if not len(self._facts):
            return
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._uplink.send(self._build(sampler))
        except TimeoutError:
            log.warning("facts_left_unsent", extra=fields(count=len(self._facts)))

    def _build(self, sampler: GpuSampler) -> Report:
        picture = sampler.newest()
        problems = [
            *picture.problems,
            *self._kernel_log.problems(),
            *self._facts.problems(),
            *self._verdict.problems(),
            *self._records.problems(),
        ]
        return Report(
            version=WIRE_VERSION,
            cluster=self._config.cluster,
            node=self._config.node,
            boot_id=self._boot_id,
            sequence=0,
            agent_started_at=self._started_at,
            sent_at=0.0,
            driver_version=picture.driver_version,
            gpus=list(picture.gpus),
            ranks=self._windows.take(),
            problems=[problem[:TEXT_CHARACTERS_MAX] for problem in problems[:PROBLEMS_MAX]],
        )


def _from_thread(act: Callable[[], None]) -> Callable[[], None]:
    """`act`, callable from another thread; nothing once this loop is closed."""
    loop = asyncio.get_running_loop()

    def call() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(act)

    return call
