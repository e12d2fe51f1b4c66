"""A control plane to which Slurm refuses every drain, for as long as a file lies beside its configuration.

So the time between its decision and Slurm's drain, else a tenth of a second, is as long as a test needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from controlplane.app import Outside
from controlplane.config import Config, load_config
from controlplane.serve import real_outside, serve
from controlplane.slurm.cli import CommandLineSlurm
from controlplane.slurm.protocol import SlurmError

FILE = "drains-are-refused"


class UnwillingSlurm(CommandLineSlurm):
    def __init__(self, config: Config, file: Path) -> None:
        super().__init__(config.slurm.scontrol, timeout_seconds=config.slurm.timeout_seconds)
        self._file = file

    def drain_node(self, node: str, reason: str) -> None:
        if self._file.exists():
            raise SlurmError(f"drain {node}: Access/permission denied")
        super().drain_node(node, reason)


def main() -> None:
    config_file = Path(sys.argv[sys.argv.index("--config") + 1])
    config = load_config(config_file)
    serve(config, Outside(UnwillingSlurm(config, config_file.parent / FILE), real_outside(config).probe))


if __name__ == "__main__":
    main()
