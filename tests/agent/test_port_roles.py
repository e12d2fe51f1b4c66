"""A node's ports have roles, on machines as sites have published them."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.infiniband import PortHistory, read_hca, read_ports
from understudy_agent.sample.port_roles import is_named, roles
from understudy_wire.hardware import Port, PortRole

WORLD = Path(__file__).parents[1] / "data" / "world" / "network" / "ports"
LINES = {"LinkUp": "5: LinkUp", "Polling": "2: Polling", "Disabled": "3: Disabled"}
VPD = b"\x82\x0a\x00ConnectX-7\x90\x1f\x00VA\x1cMLX:MN=MLNX:SMDL=SW_MNG:PCI=V0\x78"


class Machine:
    """/sys/class/infiniband of a published machine."""

    def __init__(self, name: str, folder: Path) -> None:
        text = (WORLD / name).read_text()
        self.rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
        self.sys = folder / "sys"
        self.conf = folder / "nccl.conf"
        self.conf.write_text("".join(line[2:] + "\n" for line in text.splitlines() if line.startswith("# NCCL_IB_HCA")))
        self._history = PortHistory(HardwareHistory(folder / "hardware.json", "boot"), "boot")
        for device, port, adapter, link_layer, state, physical, rate, mark, _ in self.rows:
            if adapter != "-":
                self._write(f"{device}/board_id", adapter)
            self._write(f"{device}/ports/{port}/link_layer", link_layer)
            self._write(f"{device}/ports/{port}/phys_state", LINES[physical])
            self._write(f"{device}/ports/{port}/state", "4: ACTIVE" if state == "ACTIVE" else "1: DOWN")
            self._write(f"{device}/ports/{port}/rate", f"{rate} Gb/sec (4X NDR)")
            (self.sys / "class/infiniband" / device / "device").mkdir()
            if mark == "SW_MNG":
                (self.sys / "class/infiniband" / device / "device/vpd").write_bytes(VPD)
            elif mark != "-":
                (folder / "drivers" / mark).mkdir(parents=True, exist_ok=True)
                synthetic = self.sys / "class/infiniband" / device / "device/net/eth1/master/device"
                synthetic.mkdir(parents=True)
                (synthetic / "driver").symlink_to(folder / "drivers" / mark)

    @property
    def expected(self) -> dict[str, str]:
        return {f"{device}/{port}": role for device, port, *_, role in self.rows}

    def take_down(self, role: str) -> None:
        """All ports of this role, before the agent first sees them. Without a link the kernel shows 10 Gb/s."""
        for device, port, *_, of_port in self.rows:
            if of_port == role:
                self._write(f"{device}/ports/{port}/state", "1: DOWN")
                self._write(f"{device}/ports/{port}/rate", "10 Gb/sec (4X SDR)")

    def lose(self, *devices: str) -> None:
        """Their adapters leave the bus."""
        for device in devices:
            (self.sys / "class/infiniband" / device).rename(self.sys / device)

    def ports(self, seconds: float = 0.0) -> list[Port]:
        self._history.add(read_ports(self.sys), seconds, seconds, read_hca(self.conf))
        return self._history.ports

    def roles(self) -> dict[str, str]:
        return {port.label: port.role.value for port in self.ports()}

    def _write(self, name: str, text: str) -> None:
        file = self.sys / "class/infiniband" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


@pytest.mark.parametrize("name", sorted(file.name for file in WORLD.glob("*.txt")))
def test_ports_of_published_machines_have_their_roles(name: str, tmp_path: Path) -> None:
    machine = Machine(name, tmp_path)
    assert machine.roles() == machine.expected


@pytest.mark.parametrize("name", sorted(file.name for file in WORLD.glob("*.txt")))
def test_roles_stay_where_adapters_are_lost(name: str, tmp_path: Path) -> None:
    machine = Machine(name, tmp_path)
    machine.ports()
    machine.lose(*[row[0] for row in machine.rows if row[-1] == "training"][1:])
    found = {port.label: port.role.value for port in machine.ports(60.0)}
    assert found == {label: role for label, role in machine.expected.items() if label in found}
    assert machine.expected.keys() == found.keys() | {
        f"{row[0]}/{row[1]}" for row in machine.rows if row[4] == "DOWN" and row[-1] == "training"
    }


@pytest.mark.parametrize("name", sorted(file.name for file in WORLD.glob("*.txt")))
def test_a_fabric_that_is_down_since_the_node_booted_is_still_the_one_for_training(name: str, tmp_path: Path) -> None:
    machine = Machine(name, tmp_path)
    machine.take_down("training")
    assert machine.roles() == machine.expected


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("mlx5", {"mlx5_1/1", "mlx5_10/1", "mlx5_10/2", "mlx5_bond_0/1"}),
        ("mlx5_1", {"mlx5_1/1", "mlx5_10/1", "mlx5_10/2"}),
        ("=mlx5_1", {"mlx5_1/1"}),
        ("=mlx5_10:2,mlx5_1", {"mlx5_1/1", "mlx5_10/2"}),
        ("=mlx5_10:2:0:1", {"mlx5_10/2"}),
        ("^mlx5_bond", {"mlx5_1/1", "mlx5_10/1", "mlx5_10/2"}),
        ("^=mlx5_1", {"mlx5_10/1", "mlx5_10/2", "mlx5_bond_0/1"}),
        ("", {"mlx5_1/1", "mlx5_10/1", "mlx5_10/2", "mlx5_bond_0/1"}),
        ("^", set()),
    ],
)
def test_nccl_ib_hca_means_what_nccl_makes_of_it(setting: str, named: set[str]) -> None:
    ports = [("mlx5_1", 1), ("mlx5_10", 1), ("mlx5_10", 2), ("mlx5_bond_0", 1)]
    assert {f"{device}/{number}" for device, number in ports if is_named(setting, device, number)} == named


def test_the_first_line_of_nccl_conf_counts(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    assert read_hca(conf) == ""
    conf.write_text("NCCL_DEBUG=WARN\n#NCCL_IB_HCA=mlx4\nNCCL_IB_HCA==mlx5_0:1\r\nNCCL_IB_HCA=mlx5_1\n")
    assert read_hca(conf) == "=mlx5_0:1"


@pytest.mark.parametrize("setting", ["mlx5", "^mlx5", "=mlx4_0"])
def test_a_setting_that_distinguishes_no_port_changes_nothing(setting: str) -> None:
    ports = [Port("mlx5_0", 1, "InfiniBand", rate_gbps_max=400.0), Port("mlx5_1", 1, "Ethernet", rate_gbps_max=100.0)]
    assert roles(ports, setting) == {"mlx5_0/1": PortRole.TRAINING, "mlx5_1/1": PortRole.OTHER}


def test_the_only_port_of_a_node_is_for_training() -> None:
    assert roles([Port("mlx5_0", 1, "Ethernet", rate_gbps_max=25.0)], "") == {"mlx5_0/1": PortRole.TRAINING}
    assert roles([], "") == {}


def fabric(*ports: tuple[str, str, float | None]) -> dict[str, str]:
    """Roles of mlx5_0, mlx5_1, ...: link layer, adapter and highest rate of each; None: never up in this boot."""
    found = [
        Port(f"mlx5_{number}", 1, link_layer, adapter=adapter, rate_gbps_max=gbps, was_active=gbps is not None)
        for number, (link_layer, adapter, gbps) in enumerate(ports)
    ]
    return {label.partition("/")[0]: role.value for label, role in roles(found, "").items()}


def test_efa_is_for_training_beside_as_much_infiniband_that_reaches_the_nvswitches() -> None:
    """The VPD of those adapters was never seen on AWS."""
    found = fabric(*[("InfiniBand", "bridge", 400.0)] * 2, *[("Unknown", "", 400.0)] * 8)
    assert [*found.values()] == ["other"] * 2 + ["training"] * 8


UNUSED = ("InfiniBand", "VPI", None)


@pytest.mark.parametrize(("count", "gbps"), [(2, 400.0), (2, 200.0), (4, 100.0), (1, 400.0), (2, 100.0), (1, 200.0)])
@pytest.mark.parametrize("unused_first", [True, False])
def test_adapters_without_cables_are_not_for_training(count: int, gbps: float, unused_first: bool) -> None:
    used = [("Ethernet", "RoCE", gbps)] * count
    found = [*fabric(*([UNUSED] * 2 + used if unused_first else used + [UNUSED] * 2)).values()]
    other, training = ["other"] * 2, ["training"] * count
    assert found == (other + training if unused_first else training + other)


def test_four_ports_without_cables_are_not_for_training_either_beside_as_many_with() -> None:
    used = [("Ethernet", "RoCE", 200.0)] * 4
    assert [*fabric(*[UNUSED] * 4, *used).values()] == ["other"] * 4 + ["training"] * 4


@pytest.mark.parametrize("storage", [1, 2, 4])
def test_infiniband_that_is_down_since_the_boot_is_for_training_beside_fast_storage(storage: int) -> None:
    found = fabric(*[("InfiniBand", "NDR", None)] * 8, *[("Ethernet", "storage", 400.0)] * storage)
    assert [*found.values()] == ["training"] * 8 + ["other"] * storage


NDR = ("InfiniBand", "A", 400.0)


@pytest.mark.parametrize(
    ("alike", "others", "joins"),
    [
        (7, [("InfiniBand", "B", 400.0)], True),
        (3, [("InfiniBand", "B", 400.0)], True),
        (1, [("InfiniBand", "B", 400.0)], True),
        (8, [("InfiniBand", "B", 400.0)], False),  # nothing is missing among the eight: it is for storage
        (7, [("InfiniBand", "B", 200.0)], False),
        (7, [("InfiniBand", "B", None)], False),  # whether it is one of them shows once it is up
        (7, [("Ethernet", "B", 400.0)], False),
        (7, [("InfiniBand", "B", 400.0)] * 2, False),
        (7, [("InfiniBand", "B", 400.0), ("InfiniBand", "C", 400.0)], False),  # which one of them is not known
    ],
)
def test_a_card_that_was_replaced_by_one_of_another_board_is_for_training(
    alike: int, others: list[tuple[str, str, float | None]], joins: bool
) -> None:
    found = fabric(*[NDR] * alike, *others)
    assert [*found.values()] == ["training"] * alike + ["training" if joins else "other"] * len(others)
