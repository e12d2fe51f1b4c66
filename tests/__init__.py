"""Tests, the testbed they run on (`testbed`), and the demo (`demo`)."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

PYTHON_PATH = ":".join(str(REPOSITORY / folder) for folder in ("agents", "controlplane", "."))
"""PYTHONPATH of a subprocess that runs this checkout, whichever one is installed."""
