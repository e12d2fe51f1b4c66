"""The agent: joins the readers, the ranks' socket and the uplink.

The agent sends a report every interval, and at once for a new fact or a GPU that changed its state. A fact never waits
for an NVML sample: it goes with the last one, and the next sample, taken right after, goes with the next report.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import cache
from pathlib import Path

import msgspec

from understudy_agent.coalesced_requests import CoalescedRequests
from understudy_agent.config import Config, read_boot_id, tls_of
from understudy_agent.credentials import credentials_of
from understudy_agent.facts import FactQueue, Settle
from understudy_agent.files.fetched import FetchedCheckpoints
from understudy_agent.files.tasks import FileTasks
from understudy_agent.hooks.records import HookRecords, JobGone
from understudy_agent.hooks.verdict import VerdictFile
from understudy_agent.keeper_client import exchange
from understudy_agent.launchers import Launchers
from understudy_agent.log import fields, log
from understudy_agent.nccl_ras import NcclWatch
from understudy_agent.ranks import RankServer
from understudy_agent.reload import reloaded
from understudy_agent.sample.ethtool import PauseStorms
from understudy_agent.sample.gpus import GpuProcess, GpuSource
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.host import read_host, read_mounts, with_history
from understudy_agent.sample.infiniband import PortHistory, is_of_nvswitch, read_hca, read_ports
from understudy_agent.sample.kernel_log import KernelLog, open_source
from understudy_agent.sample.nvml_events import NvmlEvents
from understudy_agent.sample.optics import Optics
from understudy_agent.sample.parts import read_parts
from understudy_agent.sample.processes import Processes
from understudy_agent.sample.sampler import Sampler
from understudy_agent.spool import Spool
from understudy_agent.step_windows import WindowBuffer
from understudy_agent.uplink import Uplink
from understudy_wire.facts import Fact, HardwareEvent, KernelEvent
from understudy_wire.hardware import Host, Part, Port, StuckProcess
from understudy_wire.messages import GPUS_PER_NODE_MAX, RELEASE, WIRE_VERSION, Acknowledgement, Keeper, KeptJob, Report
from understudy_wire.systemd import ServiceManager
from understudy_wire.values import EPOCH_SECONDS_MAX, printable

COALESCE_SECONDS = 0.01
"""Facts come in bursts: those that follow within this time go into the same report."""

LAST_REPORT_SECONDS = 2.0
SPOOL_SECONDS = 2.0
PROBLEMS_MAX = 32

NCCL_CONF = Path("/etc/nccl.conf")

PORTS_SECONDS = 5.0
HOST_SECONDS = 15.0
PROCESSES_SECONDS = 30.0
KEEPER_SECONDS = 15.0
"""Intervals at which ports, host, processes and keeper are read."""
PARTS_SECONDS = 24 * 3600.0
PARTS_AGAIN_SECONDS = 600.0
"""Interval for a control plane that has started since."""


class Agent:
    """One for each node. Construct it, run() it in an event loop, stop() it from a signal handler of that loop."""

    def __init__(self, config: Config, gpus: GpuSource | None = None) -> None:
        """`gpus` replaces NVML in tests. Raises ConfigError when token or boot id cannot be read."""
        self._config = config
        self._boot_id = read_boot_id(config)
        self._started_at = min(time.time(), EPOCH_SECONDS_MAX)
        self._due = asyncio.Event()
        self._facts = FactQueue()
        self._spool = Spool(config.spool or config.run_directory / "facts.spool")
        self._spooling: asyncio.Task[None] | None = None
        self._windows = WindowBuffer()
        self._kernel_log = KernelLog(open_source(config.kernel_log), self._boot_id)
        self._verdict = VerdictFile(config.run_directory / "verdict")
        self._records = HookRecords(config.run_directory, self._put, self._on_gone)
        self._uplink = Uplink(
            config.control_plane_urls,
            credentials_of(config),
            self._facts,
            on_acknowledged=self._take_acknowledgement,
            tls=tls_of(config),
            to_look=credentials_of(config),
        )
        self._ranks = RankServer(
            config.socket,
            self._facts,
            self._windows,
            CoalescedRequests(self._uplink.restore_point),
            self._due.set,
            Launchers(config.cluster, config.node, self._uplink.launcher_orders),
        )
        self._nccl = NcclWatch(self._ranks.of_attempt, self._windows.note_nccl)
        self._hardware = HardwareHistory(config.run_directory / "hardware.json", self._boot_id)
        self._gpus: GpuSource = gpus or (
            GpuProcess(self._hardware, config.nvml.interval_seconds) if config.nvml.enabled else GpuSource()
        )
        self._nvml_events = NvmlEvents(self._boot_id)
        host = config.host
        storms, optics = PauseStorms(), Optics()
        of_nvswitch = cache(is_of_nvswitch)
        self._port_sampler = Sampler(
            "fabric ports",
            lambda: (read_ports(host.sys, storms, optics, of_nvswitch), read_hca(NCCL_CONF)),
            PORTS_SECONDS,
        )
        self._host_sampler = Sampler(
            "memory, clock and disks",
            lambda: (read_host(host.sys, host.proc, self._disks), read_mounts(self._disks)),
            HOST_SECONDS,
        )
        self._keeper_sampler = Sampler("the keeper", self._ask_keeper, KEEPER_SECONDS)
        self._keeper: Keeper | None = None
        self._jobs_over: tuple[KeptJob, ...] = ()
        processes = Processes(host.proc)
        self._process_sampler = Sampler("processes", lambda: processes.read(time.monotonic()), PROCESSES_SECONDS)
        self._processes: list[StuckProcess] = []
        self._part_sampler = Sampler("serial numbers", lambda: read_parts(host.sys), PARTS_SECONDS)
        self._parts: list[Part] = []
        self._parts_sent_at = float("-inf")
        self._ports = PortHistory(self._hardware, self._boot_id)
        self._host: Host | None = None
        self._file_tasks = FileTasks()
        self._fetched = FetchedCheckpoints(self._ranks.is_here)
        self._stopping = asyncio.Event()
        self._manager = ServiceManager()

    async def run(self) -> None:
        """Runs until stop(). Raises SocketInUseError or OSError when the ranks' socket cannot be created."""
        await self._ranks.start()  # from here on this is the only agent, so the spool is its own
        for fact in self._spool.load():
            self._facts.put(fact)
        self._gpus.start(self._due.set, self._nvml_events.add)
        if self._config.host.enabled:
            self._port_sampler.start(self._take_ports)
            self._host_sampler.start(self._take_host)
            self._part_sampler.start(self._take_parts)
            self._process_sampler.start(self._take_processes)
        self._keeper_sampler.start(self._take_keeper)
        log.info(
            "agent_started",
            extra=fields(
                cluster=self._config.cluster,
                node=self._config.node,
                boot_id=self._boot_id,
                url=",".join(self._config.control_plane_urls),
                socket=self._config.socket,
            ),
        )
        self._manager.ready("no report was sent yet")
        try:
            async with asyncio.TaskGroup() as group:
                work = (self._kernel_log.follow(self._take), self._records.follow(), self._fetched.follow())
                tasks = [group.create_task(one) for one in (*work, self._report())]
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._manager.stopping()
            self._gpus.stop()
            for sampler in (
                self._port_sampler,
                self._host_sampler,
                self._process_sampler,
                self._keeper_sampler,
                self._part_sampler,
            ):
                sampler.stop()
            await self._file_tasks.stop()
            await self._send_last_report()
            await self._keep_last_facts()
            await self._nccl.stop()
            await self._ranks.stop()
            await self._uplink.close()
            log.info("agent_stopped", extra=fields(count=len(self._facts)))

    def stop(self) -> None:
        self._stopping.set()

    def reload(self, new: Config) -> None:
        found = reloaded(self._config, new)
        self._config = found.config
        self._uplink.follow(found.config.control_plane_urls)
        log.info("configuration_reloaded", extra=fields(changed=", ".join(found.changed) or "nothing"))
        if found.waiting:
            settings = ", ".join(found.waiting)
            log.warning("configuration_needs_restart", extra=fields(settings=settings, remedy="restart the agent"))

    @property
    def _disks(self) -> tuple[Path, ...]:
        return self._config.host.disks

    def _put(self, fact: Fact, settle: Settle) -> None:
        self._facts.put(fact, settle)
        self._due.set()

    def _on_gone(self, gone: JobGone) -> None:
        """Sends the job's last step times at once, while the control plane still accepts them."""
        self._ranks.forget(gone.job_id, gone.at)
        self._fetched.note_gone(gone.job_id, time.monotonic())
        self._due.set()

    def _take(self, events: list[KernelEvent]) -> None:
        self._nvml_events.add_kernel_events(events, time.time())
        for event in events:
            log.warning("kernel_event", extra=fields(sequence=event.sequence, xid=event.xid, text=event.text))
            self._facts.put(event)
        self._due.set()
        self._gpus.take_now()

    def _take_ports(self, reading: tuple[list[Port], str]) -> None:
        ports, hca = reading
        for event in self._ports.add(ports, time.monotonic(), time.time(), hca):
            self._put_hardware(event)
            self._due.set()

    def _take_parts(self, parts: list[Part]) -> None:
        self._parts, self._parts_sent_at = parts, float("-inf")

    def _take_processes(self, processes: list[StuckProcess]) -> None:
        for process in processes:
            if (process.pid, process.why) not in {(one.pid, one.why) for one in self._processes}:
                log.warning("process_stuck", extra=fields(pid=process.pid, reason=process.why.value))
        self._processes = processes

    def _take_host(self, reading: tuple[Host, list[str]]) -> None:
        self._host = with_history(*reading, self._hardware)

    def _ask_keeper(self) -> Keeper | None:
        """Runs in a thread of its own."""
        return exchange(self._config.keeper.socket, self._jobs_over)

    def _take_keeper(self, keeper: Keeper | None) -> None:
        self._keeper = keeper

    async def _report(self) -> None:
        next_at = asyncio.get_running_loop().time()
        while True:
            try:
                async with asyncio.timeout_at(next_at):
                    await self._due.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(COALESCE_SECONDS)
            now = asyncio.get_running_loop().time()
            next_at = max(next_at + self._config.report_interval_seconds, now) if now >= next_at else next_at
            self._due.clear()
            for event in self._nvml_events.due(time.time()):
                self._put_hardware(event)
            before = len(self._facts)
            begun = time.monotonic()
            with_parts = bool(self._parts) and begun - self._parts_sent_at >= PARTS_AGAIN_SECONDS
            programs = self._ranks.programs.due(begun)
            report = msgspec.structs.replace(self._build(), parts=self._parts if with_parts else [], programs=programs)
            accepted = await self._uplink.send(report)
            if accepted and with_parts:
                self._parts_sent_at = begun
            if accepted and programs is not None:
                self._ranks.programs.note_sent(programs, begun)
            self._keep_facts(accepted)
            self._manager.alive(
                f"{'reports to' if accepted else 'no answer from'} {' '.join(self._config.control_plane_urls)}"
            )
            if accepted and before and len(self._facts):
                self._due.set()  # there are more facts than fit into one report

    def _keep_facts(self, accepted: bool) -> None:
        """A thread writes them to disk: a disk that hangs delays no report."""
        unchanged = self._spool.empty if not len(self._facts) else accepted
        if not unchanged and (self._spooling is None or self._spooling.done()):
            waiting = self._facts.oldest(len(self._facts))
            self._spooling = asyncio.create_task(asyncio.to_thread(self._spool.keep, waiting))

    async def _keep_last_facts(self) -> None:
        """What the last report could not send, for the next agent."""
        waiting = self._facts.oldest(len(self._facts))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SPOOL_SECONDS):
                if self._spooling is not None:
                    await self._spooling
                await asyncio.to_thread(self._spool.keep, waiting)

    def _put_hardware(self, event: HardwareEvent) -> None:
        log.warning("hardware_event", extra=fields(kind=event.kind, part=event.part, number=event.number))
        self._facts.put(event)

    async def _send_last_report(self) -> None:
        """One last attempt to send facts that would be lost with the agent, and to announce that it stops."""
        for event in self._nvml_events.last():
            self._put_hardware(event)
        try:
            async with asyncio.timeout(LAST_REPORT_SECONDS):
                await self._uplink.send(msgspec.structs.replace(self._build(), stopping=True))
        except TimeoutError:
            log.warning("facts_not_sent", extra=fields(count=len(self._facts)))

    def _take_acknowledgement(self, acknowledgement: Acknowledgement) -> None:
        self._verdict.note(acknowledgement.unfit)
        if acknowledgement.kernel_log is not None:
            self._kernel_log.follow_policy(acknowledgement.kernel_log)
        self._file_tasks.take(acknowledgement.file_task)
        self._jobs_over = tuple(acknowledgement.jobs_over)
        self._ranks.pass_on((*acknowledgement.save_orders, *acknowledgement.compute_tests, *acknowledgement.job_notes))
        self._ranks.pass_on(acknowledgement.hang_questions)
        for question in acknowledgement.hang_questions:
            self._nccl.take(question)

    def _build(self) -> Report:
        sample = self._gpus.newest()
        problems = [
            *sample.problems,
            *self._kernel_log.problems(),
            *self._facts.problems(),
            *self._spool.problems(),
            *self._verdict.problems(),
            *self._records.problems(),
            *self._hardware.problems(),
            *self._port_sampler.problems(),
            *self._host_sampler.problems(),
            *self._process_sampler.problems(),
            *self._keeper_sampler.problems(),
        ]
        ports_silent, host_silent = self._port_sampler.silent_seconds(), self._host_sampler.silent_seconds()
        return Report(
            version=WIRE_VERSION,
            cluster=self._config.cluster,
            node=self._config.node,
            boot_id=self._boot_id,
            sequence=0,
            agent_started_at=self._started_at,
            sent_at=0.0,
            driver_version=sample.driver_version,
            gpus=list(sample.gpus[:GPUS_PER_NODE_MAX]),
            nvml_silent_seconds=round(self._gpus.silent_seconds(), 1),
            nvml_unkillable=self._gpus.unkillable(),
            ports=[] if ports_silent else self._ports.ports,
            host=None if host_silent else self._host,
            ports_silent_seconds=round(ports_silent, 1),
            host_silent_seconds=round(host_silent, 1),
            ranks=self._windows.take(sample.gpus),
            problems=[printable(problem) for problem in problems[:PROBLEMS_MAX]],
            release=RELEASE,
            kernel_log_policy=self._kernel_log.policy_version,
            file_result=self._file_tasks.result,
            keeper=self._keeper,
            processes=[] if self._process_sampler.silent_seconds() else self._processes,
        )
