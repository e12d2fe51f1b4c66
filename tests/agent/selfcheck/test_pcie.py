"""Links of GPUs that are narrower or slower than both their ends can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_selfcheck.pcie import LinkWatch

FULL = {"current_link_width": "16", "current_link_speed": "32.0 GT/s PCIe"}
BEST = {"max_link_width": "16", "max_link_speed": "32.0 GT/s PCIe"}
GPU = {"vendor": "0x10de", "class": "0x030200"}


def machine(path: Path, gpu: dict[str, str], port: dict[str, str] = BEST, kind: dict[str, str] = GPU) -> Path:
    """One device below a port; /sys/bus has links to the devices."""
    device = path / "devices" / "0000:1a:01.0" / "0000:1b:00.0"
    device.mkdir(parents=True)
    for folder, files in ((device, {**kind, **BEST, **FULL, **gpu}), (device.parent, port)):
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    bus = path / "bus"
    bus.mkdir()
    (bus / device.name).symlink_to(device)
    return bus


def degraded(bus: Path) -> str:
    with LinkWatch(bus) as links:
        pass  # it looks once in any case
    return links.degraded()


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({}, ""),
        ({"current_link_width": "8"}, "0000:1b:00.0 8 of 16 lanes"),
        ({"current_link_speed": "16.0 GT/s PCIe"}, "0000:1b:00.0 16 of 32 GT/s"),
        ({"current_link_speed": "Unknown"}, ""),
        ({"current_link_width": "255"}, ""),
        ({"max_link_width": "0"}, ""),
    ],
)
def test_a_link_that_is_narrower_or_slower_than_it_can_be_is_named(
    tmp_path: Path, gpu: dict[str, str], found: str
) -> None:
    assert degraded(machine(tmp_path, gpu)) == found


def test_a_slot_with_fewer_lanes_is_no_fault_of_the_gpu(tmp_path: Path) -> None:
    assert degraded(machine(tmp_path, {"current_link_width": "8"}, {**BEST, "max_link_width": "8"})) == ""
    assert degraded(machine(tmp_path / "unknown", {"current_link_width": "8"}, {})) == ""


def test_a_link_that_is_slow_before_data_goes_over_it_is_not_named(tmp_path: Path) -> None:
    bus = machine(tmp_path, {"current_link_speed": "2.5 GT/s PCIe"})
    with LinkWatch(bus) as links:
        (bus / "0000:1b:00.0" / "current_link_speed").write_text("32.0 GT/s PCIe\n")
    assert links.degraded() == ""


def test_other_devices_are_not_looked_at(tmp_path: Path) -> None:
    narrow = {"current_link_width": "1"}
    assert degraded(machine(tmp_path, narrow, kind={"vendor": "0x15b3", "class": "0x020700"})) == ""
    assert degraded(tmp_path / "none") == ""
