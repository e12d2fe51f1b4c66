"""A control plane to which Slurm refuses every drain, for as long as a file lies beside its configuration.

So the time between its decision and Slurm's drain, else a tenth of a second, is as long as a test needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from understudy_controlplane.app import Outside
from understudy_controlplane.config import load_config
from understudy_controlplane.serve import real_outside, serve
from understudy_controlplane.slurm.protocol import Slurm, SlurmError

FILE = "drains-are-refused"


class UnwillingSlurm:
    """Real Slurm, but for the drains."""

    def __init__(self, slurm: Slurm, file: Path) -> None:
        self._slurm = slurm
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)

    def drain_node(self, node: str, reason: str) -> None:
        if self._file.exists():
            raise SlurmError(f"drain {node}: Access/permission denied")
        self._slurm.drain_node(node, reason)


def main() -> None:
    config_file = Path(sys.argv[sys.argv.index("--config") + 1])
    config = load_config(config_file)
    real = real_outside(config)
    serve(
        config, config_file, Outside(cast("Slurm", UnwillingSlurm(real.slurm, config_file.parent / FILE)), real.probe)
    )


if __name__ == "__main__":
    main()
