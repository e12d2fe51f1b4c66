"""`python -m tests.documented_examples [NAME…]`: every example of the documents, on one cluster, with a fault in it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance import documented
from tests.testbed.configuration import IMPATIENT_SCHEDULER
from tests.testbed.site import Site


def main() -> int:
    failed = 0
    directory = Path(tempfile.mkdtemp(prefix="ud-"))
    try:
        with Site(directory, nodes=2, spares=0, slurm_conf_lines=[IMPATIENT_SCHEDULER]) as site:
            documented.start(site)
            for example in documented.EXAMPLES:
                if sys.argv[1:] and example.name not in sys.argv[1:]:
                    continue
                began, result = time.monotonic(), "went on"
                try:
                    documented.run(site, example)
                except Exception as error:  # noqa: BLE001 - the others are run, too
                    result = f"FAILED: {error}\n" + "\n".join(getattr(error, "__notes__", []))
                failed += result != "went on"
                print(f"{example.name}: {result} ({time.monotonic() - began:.1f} s)", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
