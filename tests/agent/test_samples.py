"""What the agent derives from samples of the hardware: GPUs compared with those seen before, ports, the host, NVML's
events.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.testbed.fake_fabric import UP, FakeFabric
from tests.waiting import until
from understudy_agent.config import HostConfig
from understudy_agent.sample import optics
from understudy_agent.sample.ethtool import PauseStorms, statistics
from understudy_agent.sample.gpu_history import GpuHistory
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.host import read_host, read_mounts, with_history
from understudy_agent.sample.infiniband import PortHistory, read_ports
from understudy_agent.sample.nvml_events import NvmlEvents
from understudy_agent.sample.nvml_sample import NvmlEvent, NvmlSample
from understudy_agent.sample.recent import Growth, Share
from understudy_agent.sample.sampler import Sampler
from understudy_wire.facts import HardwareKind, KernelEvent
from understudy_wire.hardware import Disk, Gpu, GpuStatus, Host, Port
from understudy_wire.values import SIZE_MAX


@pytest.fixture
def hardware(tmp_path: Path) -> HardwareHistory:
    return HardwareHistory(tmp_path / "run" / "hardware.json", "boot-1")


def reopened(hardware: HardwareHistory, boot_id: str = "boot-1") -> HardwareHistory:
    return HardwareHistory(hardware.path, boot_id)


def gpu(index: int, uuid: str = "", status: GpuStatus = GpuStatus.OK, **values: Any) -> Gpu:
    bus_id = values.pop("bus_id", f"0000:{index:02x}:00.0")
    return Gpu(index, status, uuid or f"GPU-{index}", bus_id, **values)


def sample(*gpus: Gpu) -> NvmlSample:
    return NvmlSample("570", gpus)


class TestGpuHistory:
    def test_a_gpu_that_was_reset_is_missing_no_longer(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        before = history.add(sample(gpu(0), gpu(1)), 0.0)
        missing = history.add(sample(gpu(0)), 10.0).gpus[1]
        assert (missing.status, missing.uuid, missing.missing_seconds) == (GpuStatus.MISSING, "GPU-1", 0.0)
        assert history.add(sample(gpu(0)), 25.0).gpus[1].missing_seconds == 15.0
        after = history.add(sample(gpu(0), gpu(1)), 30.0)
        assert after.gpus == before.gpus
        assert history.add(sample(gpu(0)), 40.0).gpus[1].missing_seconds == 0.0  # counted from zero again

    def test_gpus_that_move_to_other_indexes_are_the_same_gpus(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        history.add(sample(*(gpu(i) for i in range(4))), 0.0)
        moved = [gpu(0), gpu(1, "GPU-2", bus_id="0000:02:00.0"), gpu(2, "GPU-3", bus_id="0000:03:00.0")]
        after = history.add(sample(*moved), 5.0).gpus
        assert [one.replaced_uuid for one in after] == [""] * 4
        assert [(one.uuid, one.status) for one in after][-1] == ("GPU-1", GpuStatus.MISSING)
        assert sorted(one.index for one in after) == [0, 1, 2, 3]

    def test_another_gpu_in_the_same_place_is_reported_also_by_a_new_agent(self, hardware: HardwareHistory) -> None:
        GpuHistory(hardware).add(sample(gpu(0), gpu(1)), 0.0)
        for history in (GpuHistory(hardware), GpuHistory(reopened(hardware))):
            after = history.add(sample(gpu(0), gpu(1, "GPU-new")), 10.0).gpus
            assert [(one.uuid, one.replaced_uuid) for one in after] == [("GPU-0", ""), ("GPU-new", "GPU-1")]

    def test_another_serial_is_another_gpu(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        history.add(sample(gpu(0, serial="1")), 0.0)
        assert history.add(sample(gpu(0, serial="2")), 1.0).gpus[0].replaced_uuid == "GPU-0"

    def test_a_gpu_that_cannot_be_named_is_the_one_that_was_there(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        history.add(sample(gpu(0), gpu(1)), 0.0)
        lost = Gpu(1, GpuStatus.LOST, error="GPU is lost")
        after = history.add(sample(gpu(0), lost), 1.0).gpus
        assert [(one.uuid, one.status) for one in after] == [("GPU-0", GpuStatus.OK), ("GPU-1", GpuStatus.LOST)]

    def test_a_driver_that_cannot_be_used_takes_no_gpu_out_of_the_list(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        history.add(sample(gpu(0), gpu(1)), 0.0)
        after = history.add(NvmlSample(error="NVML cannot be used"), 1.0)
        assert [one.status for one in after.gpus] == [GpuStatus.UNREADABLE] * 2
        assert after.problems == ("NVML cannot be used",)

    def test_links_that_went_down_are_reported_with_the_number_that_was_up(self, hardware: HardwareHistory) -> None:
        GpuHistory(hardware).add(sample(gpu(0, nvlinks=18)), 0.0)
        after = GpuHistory(reopened(hardware)).add(sample(gpu(0, nvlinks=17)), 1.0).gpus[0]
        assert (after.nvlinks, after.nvlinks_max) == (17, 18)

    def test_a_gpu_that_is_put_into_mig_mode_has_lost_no_links(self, hardware: HardwareHistory) -> None:
        GpuHistory(hardware).add(sample(gpu(0, nvlinks=18)), 0.0)
        after = GpuHistory(reopened(hardware)).add(sample(gpu(0, nvlinks=0, mig_mode=True)), 1.0).gpus[0]
        assert (after.nvlinks, after.nvlinks_max) == (0, None)

    def test_a_gpu_that_is_lost_is_still_known_to_be_in_mig_mode(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        history.add(sample(gpu(0, mig_mode=True), gpu(1, mig_mode=True)), 0.0)
        after = history.add(sample(gpu(0, mig_mode=True)), 1.0).gpus
        assert [(one.status, one.mig_mode) for one in after] == [(GpuStatus.OK, True), (GpuStatus.MISSING, True)]

    def test_counters_are_reported_with_their_growth(self, hardware: HardwareHistory) -> None:
        history = GpuHistory(hardware)
        for minute, replays in enumerate([100, 100, 107, 107, 5, 8]):
            after = history.add(sample(gpu(0, pcie_replays=replays)), minute * 60.0).gpus[0]
            assert after.pcie_replays == replays
            assert after.pcie_replays_recent == [0, 0, 7, 7, 0, 3][minute]


def test_growth_covers_only_the_last_minutes() -> None:
    growth = Growth(seconds=600)
    assert [growth.add("a", at, value) for at, value in ((0, 10), (300, 15), (700, 15), (1300, 15))] == [0, 5, 0, 0]
    assert growth.add("b", 0, None) is None


def test_a_share_is_known_when_enough_was_read() -> None:
    share = Share(seconds=100)
    shares = [share.add("a", float(at), at >= 100) for at in range(0, 201, 10)]
    assert shares[:5] == [None] * 5
    assert shares[10] == pytest.approx(1 / 11)
    assert shares[-1] == 1.0


@pytest.fixture
def fabric(tmp_path: Path) -> FakeFabric:
    fabric = FakeFabric(tmp_path)
    fabric.lay_out(1)
    return fabric


class TestPorts:
    def test_a_port_is_read_as_the_kernel_shows_it(self, fabric: FakeFabric) -> None:
        fabric.change(0, {"counters/link_downed": "3"})
        (port,) = read_ports(fabric.sys)
        assert (port.label, port.state, port.physical_state) == ("mlx5_0/1", "ACTIVE", "LinkUp")
        assert (port.rate_gbps, port.link_layer, port.link_downed) == (400.0, "InfiniBand", 3)

    def test_an_adapter_that_shows_rubbish_is_read_as_a_report_can_have_it(self, fabric: FakeFabric) -> None:
        fabric.change(0, {"state": "4: ACT\x01VE", "phys_state": "x" * 4096, "link_layer": "Infini\x00Band"})
        (port,) = read_ports(fabric.sys)
        assert (port.state, port.physical_state, port.link_layer) == ("ACT VE", "x" * 64, "Infini Band")
        assert msgspec.json.decode(msgspec.json.encode(port), type=Port) == port

    def test_a_node_without_adapters_has_no_ports(self, tmp_path: Path) -> None:
        assert read_ports(tmp_path) == []

    def test_an_adapter_that_shows_only_some_attributes_is_read_in_part(self, fabric: FakeFabric) -> None:
        fabric.change(0, {"rate": "", "counters/symbol_error": "n/a", "counters/link_downed": str(2**64 - 1)})
        (port,) = read_ports(fabric.sys)
        assert (port.state, port.rate_gbps, port.symbol_errors, port.link_downed) == ("ACTIVE", None, None, None)

    def test_an_outage_is_counted_while_it_lasts_and_sent_when_it_is_over(
        self, fabric: FakeFabric, hardware: HardwareHistory
    ) -> None:
        history = PortHistory(hardware, "boot-1")
        assert history.add(read_ports(fabric.sys), 1000.0, 5000.0) == []
        fabric.take_down(0)
        history.add(read_ports(fabric.sys), 1005.0, 5005.0)
        history.add(read_ports(fabric.sys), 1035.0, 5035.0)
        assert (history.ports[0].down_seconds, history.ports[0].was_active) == (30.0, True)
        fabric.bring_up(0)
        (event,) = history.add(read_ports(fabric.sys), 1045.0, 5045.0)
        assert (event.kind, event.part) == (HardwareKind.PORT_OUTAGE, "mlx5_0/1")
        assert (event.at, event.seconds, event.number) == (5005.0, 40.0, 1)
        assert history.ports[0].down_seconds is None
        assert history.add(read_ports(fabric.sys), 1050.0, 5050.0) == []

    def test_outages_between_two_samples_come_from_the_adapters_counter_and_many_of_them_are_one_event(
        self, fabric: FakeFabric, hardware: HardwareHistory
    ) -> None:
        history = PortHistory(hardware, "boot-1")
        outages = []
        for minute, downed in enumerate([7, 7, 8, 8, *range(9, 25)]):
            fabric.change(0, {"counters/link_downed": str(downed)})
            at = minute * 60.0
            outages += [(at, event.seconds, event.number) for event in history.add(read_ports(fabric.sys), at, at)]
        assert outages == [(120.0, 0.0, 8), (720.0, 0.0, 17)]
        assert history.ports[0].link_downed_recent == 10
        fabric.change(0, {"counters/link_downed": "0"})  # an administrator reset it
        assert history.add(read_ports(fabric.sys), 2000.0, 2000.0) == []

    def test_a_short_outage_is_sent_once(self, fabric: FakeFabric, hardware: HardwareHistory) -> None:
        history = PortHistory(hardware, "boot-1")
        history.add(read_ports(fabric.sys), 0.0, 0.0)
        fabric.take_down(0)
        assert history.add(read_ports(fabric.sys), 5.0, 5.0) == []
        fabric.bring_up(0)
        (event,) = history.add(read_ports(fabric.sys), 10.0, 10.0)
        assert (event.seconds, event.number) == (0.0, 1)
        assert history.add(read_ports(fabric.sys), 15.0, 15.0) == []

    def test_an_outage_is_known_after_a_restart_of_the_agent(
        self, fabric: FakeFabric, hardware: HardwareHistory
    ) -> None:
        history = PortHistory(hardware, "boot-1")
        history.add(read_ports(fabric.sys), 1000.0, 5000.0)
        fabric.take_down(0)
        history.add(read_ports(fabric.sys), 1005.0, 5005.0)
        history = PortHistory(reopened(hardware), "boot-1")
        history.add(read_ports(fabric.sys), 1305.0, 5305.0)
        assert history.ports[0].down_seconds == 300.0
        history = PortHistory(reopened(hardware, "boot-2"), "boot-2")
        history.add(read_ports(fabric.sys), 5.0, 9000.0)
        assert (history.ports[0].was_active, history.ports[0].down_seconds) == (False, 0.0)

    def test_an_adapter_that_is_gone_is_a_port_that_is_down(
        self, fabric: FakeFabric, hardware: HardwareHistory
    ) -> None:
        fabric.lay_out(2)
        history = PortHistory(hardware, "boot-1")
        history.add(read_ports(fabric.sys), 0.0, 0.0)
        history.add(read_ports(fabric.sys)[:1], 10.0, 10.0)
        history.add(read_ports(fabric.sys)[:1], 40.0, 40.0)
        assert [(port.label, port.state, port.down_seconds) for port in history.ports] == [
            ("mlx5_0/1", "ACTIVE", None),
            ("mlx5_1/1", "", 30.0),
        ]

    def test_a_port_that_was_never_up_is_reported_as_such(self, fabric: FakeFabric, hardware: HardwareHistory) -> None:
        fabric.take_down(0)
        history = PortHistory(hardware, "boot-1")
        for at in (0.0, 30.0):
            history.add(read_ports(fabric.sys), at, at)
            assert (history.ports[0].was_active, history.ports[0].down_seconds) == (False, at)
        fabric.change(0, UP)
        assert history.add(read_ports(fabric.sys), 60.0, 60.0) == [], "it comes up after the boot: no outage"
        assert (history.ports[0].was_active, history.ports[0].down_seconds) == (True, None)

    def test_a_slower_link_is_reported_with_its_highest_rate(
        self, fabric: FakeFabric, hardware: HardwareHistory
    ) -> None:
        history = PortHistory(hardware, "boot-1")
        history.add(read_ports(fabric.sys), 0.0, 0.0)
        fabric.change(0, {"rate": "200 Gb/sec (2X NDR)"})
        history.add(read_ports(fabric.sys), 5.0, 5.0)
        assert (history.ports[0].rate_gbps, history.ports[0].rate_gbps_max) == (200.0, 400.0)

    def test_roce_and_efa_show_their_errors_in_hw_counters(self, fabric: FakeFabric, hardware: HardwareHistory) -> None:
        history = PortHistory(hardware, "boot-1")
        counters = {"hw_counters/local_ack_timeout_err": "7", "hw_counters/packet_seq_err": "2"}
        for minute, more in enumerate(({}, {"hw_counters/local_ack_timeout_err": "307"})):
            fabric.change(0, counters | {"hw_counters/np_cnp_sent": "9999999", "link_layer": "Ethernet"} | more)
            history.add(read_ports(fabric.sys), minute * 60.0, 0.0)
        assert (history.ports[0].transport_errors, history.ports[0].transport_errors_recent) == (309, 300)

    def test_a_port_of_ethernet_has_the_flaps_and_pause_storms_of_its_interface(self, fabric: FakeFabric) -> None:
        device = fabric.sys / "class/infiniband/mlx5_0/device"
        (device / "net" / "eth7").mkdir(parents=True)
        (device / "net" / "eth7" / "carrier_down_count").write_text("4\n")
        fabric.change(0, {"link_layer": "Ethernet", "counters/link_downed": ""})
        asked: list[str] = []

        def statistics(interface: str) -> dict[str, int]:
            asked.append(interface)
            return {"tx_pause_storm_error_events": 3, "rx_packets": 9}

        storms = PauseStorms(statistics)
        for _ in range(2):
            (port,) = read_ports(fabric.sys, storms)
            assert (port.link_downed, port.pause_storms) == (4, 3)
        assert asked == ["eth7"], "once a minute"

    def test_an_optical_module_shows_its_weakest_lane_and_its_own_alarm(self, fabric: FakeFabric) -> None:
        (fabric.sys / "class/infiniband/mlx5_0/device/net/eth7").mkdir(parents=True)
        fabric.change(0, {"link_layer": "Ethernet"})
        memory, asked = bytearray(256), []
        struct.pack_into(">4H", memory, 34, 7943, 7500, 210, 8012)
        memory[10] = 0x40  # low alarm of the third lane

        def read(interface: str) -> tuple[int, bytes]:
            asked.append(interface)
            return optics.QSFP, bytes(memory)

        light = optics.Optics(read)
        for _ in range(2):
            (port,) = read_ports(fabric.sys, optics=light)
            assert (port.module_received_milliwatts, port.module_received_low) == (0.021, True)
        assert asked == ["eth7"], "once in five minutes"

    @pytest.mark.parametrize(
        ("kind", "changes", "light"),
        [
            (optics.QSFP, {34: 20, 36: 20, 38: 20, 40: 20}, optics.Light(0.512, low=False)),
            (optics.QSFP, {}, optics.UNKNOWN),  # a copper cable
            (optics.SFP, {92: 0x68, 256 + 104: 0x10, 256 + 113: 0x40}, optics.Light(0.4096, low=True)),
            (optics.SFP, {256 + 104: 0x10}, optics.UNKNOWN),  # it measures nothing
            (0x1E, {34: 20}, optics.UNKNOWN),  # a kind that is not known
        ],
    )
    def test_light_is_unknown_where_the_module_does_not_measure_it(
        self, kind: int, changes: dict[int, int], light: optics.Light
    ) -> None:
        memory = bytearray(512)
        for at, value in changes.items():
            memory[at] = value
        assert optics.decoded(kind, bytes(memory)) == light
        assert optics.decoded(kind, b"") == optics.UNKNOWN

    def test_without_a_module_or_a_permission_its_light_is_unknown(self) -> None:
        with pytest.raises(OSError):
            optics.module_memory("understudy-none")
        assert optics.Optics()("understudy-none") == optics.UNKNOWN

    def test_statistics_of_an_interface_are_those_of_the_kernel(self) -> None:
        with pytest.raises(OSError):
            statistics("understudy-none")
        assert PauseStorms()("understudy-none") is None

    def test_the_hottest_module_is_shown_and_not_the_adapters_own_processor(self, fabric: FakeFabric) -> None:
        folder = fabric.sys / "class/infiniband/mlx5_0/device/hwmon/hwmon3"
        folder.mkdir(parents=True)
        for name, text in (
            ("temp1_label", "asic"),
            ("temp1_input", "95000"),
            ("temp2_label", "front panel 000"),
            ("temp2_input", "61000"),
            ("temp2_crit", "75000"),
        ):
            (folder / name).write_text(text + "\n")
        (port,) = read_ports(fabric.sys)
        assert (port.module_celsius, port.module_celsius_max) == (61.0, 75.0)


class TestHost:
    def test_a_fabric_manager_that_ran_in_this_boot_is_missed_and_one_that_never_ran_is_not(
        self, tmp_path: Path, hardware: HardwareHistory
    ) -> None:
        group = tmp_path / "fs/cgroup/system.slice/nvidia-fabricmanager.service"

        def runs(hardware: HardwareHistory) -> bool | None:
            return with_history(read_host(tmp_path, tmp_path, []), [], hardware).fabric_manager

        assert runs(hardware) is None
        group.mkdir(parents=True)
        (group / "cgroup.procs").write_text("4711\n")
        assert runs(hardware) is True
        (group / "cgroup.procs").unlink()
        assert runs(reopened(hardware)) is False
        assert runs(reopened(hardware, "boot-2")) is None

    def test_versions_are_named_as_a_report_can_have_them(self, tmp_path: Path) -> None:
        for name, text in (
            ("class/dmi/id/bios_version", "1.2\x02"),
            ("class/infiniband/mlx5_0/board_id", "MT\x03"),
            ("class/infiniband/mlx5_0/fw_ver", "\x04"),
        ):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        host = read_host(tmp_path, tmp_path, [])
        assert host.versions == {"BIOS": "1.2", "IOMMU": "off"}
        assert msgspec.json.decode(msgspec.json.encode(host), type=Host) == host

    @pytest.mark.parametrize(
        ("blocks", "available", "files", "read"),
        [
            (2**54, 2**53, (1, 2), (SIZE_MAX, SIZE_MAX, 0.5)),
            (2**20, 2**64 - 1, (2**64 - 1, 1), (2**20, 2**20, 1.0)),
        ],
    )
    def test_a_file_system_of_any_size_is_read_within_bounds(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        blocks: int,
        available: int,
        files: tuple[int, int],
        read: object,
    ) -> None:
        free, total = files
        found = SimpleNamespace(f_blocks=blocks, f_bavail=available, f_frsize=1, f_favail=free, f_files=total, f_flag=0)
        monkeypatch.setattr("understudy_agent.sample.host.os.statvfs", lambda _: found)
        disk = read_host(tmp_path, tmp_path, [Path("/data")]).disks[0]
        assert (disk.total_bytes, disk.free_bytes, disk.free_inodes_share) == read

    def test_this_machine_is_read(self) -> None:
        default = HostConfig()
        host = read_host(default.sys, default.proc, [Path("/")])
        assert host.memory_total_bytes is not None and host.memory_available_bytes is not None
        assert 0 < host.memory_available_bytes < host.memory_total_bytes
        assert host.disks[0].total_bytes > host.disks[0].free_bytes > 0

    def test_files_that_a_kernel_does_not_have_give_none(self, tmp_path: Path) -> None:
        (tmp_path / "pressure").mkdir()
        (tmp_path / "pressure" / "cpu").write_text("some avg10=1.00 avg60=42.50 avg300=3.00 total=1\n")
        lines = "some avg10=1.00 avg60=9.00 avg300=3.00 total=1\nfull avg10=1.00 avg60=7.25 avg300=3.00 total=1\n"
        (tmp_path / "pressure" / "io").write_text(lines)
        for controller, errors in (("mc0", "3"), ("mc1", "4")):
            folder = tmp_path / "devices/system/edac/mc" / controller
            folder.mkdir(parents=True)
            (folder / "ce_count").write_text(errors)
            (folder / "ue_count").write_text("0")
        host = read_host(tmp_path, tmp_path, [])
        assert (host.cpu_pressure_percent, host.io_pressure_percent) == (42.5, 7.25)
        assert (host.memory_errors_corrected, host.memory_errors_uncorrected) == (7, 0)
        assert (host.memory_total_bytes, host.memory_pressure_percent) == (None, None)

    def test_a_disk_that_was_always_read_only_is_no_problem(self, hardware: HardwareHistory) -> None:
        def problems(*disks: Disk) -> list[tuple[str, str]]:
            return [(disk.path, disk.problem) for disk in with_history(Host(disks=list(disks)), [], hardware).disks]

        root, gone = Disk("/", 9, 5, problem="read-only"), Disk("/nowhere", 0, 0, problem="No such file or directory")
        assert problems(root, gone) == [("/", "")]
        assert problems(Disk("/", 9, 5)) == [("/", "")]
        assert problems(root) == [("/", "read-only")]

    def test_a_file_system_that_is_no_longer_mounted_is_missing_although_its_folder_can_be_read(
        self, hardware: HardwareHistory
    ) -> None:
        def problems(hardware: HardwareHistory, disk: Disk, *mounts: str) -> list[str]:
            return [one.problem for one in with_history(Host(disks=[disk]), mounts, hardware).disks]

        well, gone = Disk("/data", 9, 5), Disk("/data", 0, 0, problem="Stale file handle")
        assert problems(hardware, well) == [""]  # an ordinary folder
        assert problems(hardware, Disk("/data", 9, 5, problem="read-only"), "/data") == ["read-only"]
        for one in (hardware, reopened(hardware)):
            assert problems(one, well) == ["not mounted"]
        assert problems(hardware, gone) == ["Stale file handle"]
        assert problems(hardware, well, "/data") == [""]
        assert problems(reopened(hardware, "boot-2"), well) == [""]

    def test_a_writable_folder_does_not_make_its_file_system_writable(self, hardware: HardwareHistory) -> None:
        read_only = Disk("/data", 9, 5, problem="read-only")
        samples = [(read_only, ["/data"]), (Disk("/data", 9, 5), []), (read_only, ["/data"])]
        found = [with_history(Host(disks=[disk]), mounts, hardware).disks[0].problem for disk, mounts in samples]
        assert found == ["", "not mounted", ""]

    def test_mount_points_are_read(self, tmp_path: Path) -> None:
        assert read_mounts([Path("/"), tmp_path, tmp_path / "none", Path("/proc")]) == ["/", "/proc"]

    def test_a_missing_disk_is_a_problem_and_no_error(self, tmp_path: Path) -> None:
        host = read_host(tmp_path, tmp_path, [tmp_path / "none"])
        assert host.disks[0].problem == "No such file or directory"


def line(xid: int, bus_id: str = "0000:01:00.0") -> KernelEvent:
    return KernelEvent("boot-1", 1, 0.0, "NVRM: Xid", xid, bus_id)


class TestNvmlEvents:
    def test_an_xid_in_the_kernel_log_is_not_sent_twice(self) -> None:
        for log_first in (True, False):
            events = NvmlEvents("boot-1")
            if log_first:
                events.add_kernel_events([line(79)], 99.0)
            events.add(NvmlEvent(100.0, 0x8, 79, "0000:01:00.0"))
            if not log_first:
                events.add_kernel_events([line(79)], 103.0)
            assert events.due(101.0) == []
            assert events.due(106.0) == []

    @pytest.mark.parametrize("other", [line(48), line(79, "0000:02:00.0")])
    def test_an_xid_that_is_missing_there_is_sent_after_a_while(self, other: KernelEvent) -> None:
        events = NvmlEvents("boot-1")
        events.add_kernel_events([other], 99.0)
        events.add(NvmlEvent(100.0, 0x8, 79, "0000:01:00.0"))
        assert events.due(104.0) == []
        (fact,) = events.due(105.5)
        assert (fact.kind, fact.number, fact.part, fact.at) == (HardwareKind.NVML_XID, 79, "0000:01:00.0", 100.0)
        assert events.due(200.0) == []

    def test_an_xid_that_waits_for_its_line_is_sent_before_the_agent_stops(self) -> None:
        events = NvmlEvents("boot-1")
        events.add_kernel_events([line(79)], 99.0)
        events.add(NvmlEvent(100.0, 0x8, 79, "0000:01:00.0"))
        events.add(NvmlEvent(100.0, 0x8, 48, "0000:01:00.0"))
        assert [fact.number for fact in events.last()] == [48]
        assert events.last() == []

    def test_other_events_are_sent_at_once_and_many_of_them_once_a_minute(self) -> None:
        events = NvmlEvents("boot-1")
        for at in range(100, 200):
            events.add(NvmlEvent(float(at), 0x8000, 1, "0000:01:00.0"))
        assert [fact.at for fact in events.due(200.0)] == [100.0, 160.0]

    def test_an_event_of_an_unknown_kind_is_ignored(self) -> None:
        events = NvmlEvents("boot-1")
        events.add(NvmlEvent(100.0, 0x10, 1))
        assert events.due(200.0) == []


def test_a_reader_that_hangs_or_fails_is_reported_and_holds_up_no_other() -> None:
    hangs = threading.Event()

    async def run() -> tuple[list[str], list[float]]:
        taken: list[int] = []

        def read() -> int:
            if taken:
                raise OSError("the adapter is gone")
            return 7

        sampler = Sampler("ports", read, 0.01, silent_after_seconds=1.0)
        assert sampler.silent_seconds() == 0.0  # it was not started
        sampler.start(taken.append)
        await until(sampler.problems)
        assert taken == [7]
        assert sampler.silent_seconds() == 0.0
        hanging = Sampler("disks", hangs.wait, 0.01, silent_after_seconds=1.0)
        hanging.start(lambda _: None)
        await asyncio.sleep(0.05)
        assert hanging.problems() == []
        assert 0.0 < hanging.silent_seconds() < 1.0  # nothing was read yet
        await asyncio.sleep(1.1)
        sampler.stop()
        return [*sampler.problems(), *hanging.problems()], [sampler.silent_seconds(), hanging.silent_seconds()]

    (failed, hung), silent = asyncio.run(run())
    hangs.set()
    assert min(silent) > 1.0
    assert failed == "ports cannot be read: OSError: the adapter is gone"
    assert hung == "disks: reading has hung for 1 s"


def test_a_history_that_cannot_be_read_starts_again(tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_text("{")
    hardware = HardwareHistory(tmp_path / "hardware.json", "boot-1")
    assert "cannot be read" in hardware.problems()[0]
    hardware.seen.writable.append("/")
    hardware.save()
    assert hardware.problems() == []
    assert HardwareHistory(tmp_path / "hardware.json", "boot-1").seen.writable == ["/"]
