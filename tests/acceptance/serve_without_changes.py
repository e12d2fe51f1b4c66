"""A control plane to which Slurm refuses the change that a file beside its configuration names.

So the time between its decision and this change in Slurm, else a tenth of a second, is as long as a test needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from tests.testbed.serve import config_in_arguments
from understudy_controlplane.app import Outside
from understudy_controlplane.serve import real_outside, serve
from understudy_controlplane.slurm.protocol import READS, Slurm, SlurmError

UNWILLING = ("-m", "tests.acceptance.serve_without_changes")
FILE = "refused-changes"
"""One line: the name of a method of the gateway."""


class UnwillingSlurm:
    """Real Slurm, but for the change that the file names."""

    def __init__(self, slurm: Slurm, file: Path) -> None:
        self._slurm = slurm
        self._file = file

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._slurm, name)
        return call if name in READS else partial(self._change, name, call)

    def _change(self, name: str, call: Callable[..., None], *arguments: object) -> None:
        with suppress(FileNotFoundError):
            if self._file.read_text().strip() == name:
                raise SlurmError(f"{name} {arguments}: Access/permission denied")
        call(*arguments)


def main() -> None:
    config, config_file = config_in_arguments()
    real = real_outside(config)
    serve(
        config, config_file, Outside(cast("Slurm", UnwillingSlurm(real.slurm, config_file.parent / FILE)), real.probe)
    )


if __name__ == "__main__":
    main()
