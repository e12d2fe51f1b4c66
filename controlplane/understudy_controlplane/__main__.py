"""`python -m understudy_controlplane`: the commands of this package, for a checkout that is not installed."""

from __future__ import annotations

from understudy_controlplane.cli.main import main

main()
