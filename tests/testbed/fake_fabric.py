"""A folder of the form of /sys with InfiniBand ports in it, and the pen that writes their state."""

from __future__ import annotations

from pathlib import Path

UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp"}
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling"}
WHOLE = UP | {
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "counters/link_downed": "0",
    "counters/symbol_error": "0",
}


class FakeFabric:
    """Adapters mlx5_0, mlx5_1, ... of one port each."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys

    def lay_out(self, adapters: int) -> None:
        """Ports that are up and well."""
        for adapter in range(adapters):
            (self._port(adapter) / "counters").mkdir(parents=True, exist_ok=True)
            self.change(adapter, WHOLE)

    def change(self, adapter: int, files: dict[str, str]) -> None:
        """Set what the kernel shows of a port: files below it, and what is in them."""
        for name, text in files.items():
            file = self._port(adapter) / name
            file.parent.mkdir(exist_ok=True)
            unfinished = file.with_name(f".{file.name}.new")
            unfinished.write_text(text + "\n")
            unfinished.replace(file)

    def take_down(self, adapter: int) -> None:
        self.change(adapter, DOWN)

    def bring_up(self, adapter: int) -> None:
        """The link is back, and its counter says that it was away."""
        counter = self._port(adapter) / "counters" / "link_downed"
        self.change(adapter, UP | {"counters/link_downed": str(int(counter.read_text()) + 1)})

    def _port(self, adapter: int) -> Path:
        return self.sys / "class" / "infiniband" / f"mlx5_{adapter}" / "ports" / "1"
