"""What each signal leads to, and what a healthy day raises: real code on a virtual clock.

`python -m tests.signals` measures and writes `tests/data/signals.json`, of which `docs/signal-table.md` is made.
"""
