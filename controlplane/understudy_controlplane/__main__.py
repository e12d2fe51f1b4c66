"""`python -m understudy_controlplane`: the same as the `understudy` command, for a checkout that is not installed."""

from __future__ import annotations

from understudy_controlplane.cli.main import main

main()
