"""`python -m controlplane`: the same as the `understudy` command, for a checkout that is not installed."""

from __future__ import annotations

from controlplane.operate.cli import main

main()
