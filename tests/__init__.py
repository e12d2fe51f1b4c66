"""Tests, the testbed they run on (`testbed`), and the demo (`demo`)."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

PYTHON_PATH = ":".join(str(REPOSITORY / folder) for folder in ("agents", "controlplane", "."))
"""PYTHONPATH of a subprocess that runs this checkout, whichever one is installed."""

NOT_POSSIBLE_HERE = 75
"""Exit status of a part of the tests for which this machine lacks something (EX_TEMPFAIL of sysexits.h)."""

NEED_TORCH = (
    "agent/selfcheck/test_selfcheck.py",
    "bench/test_small.py",
    "hook/test_compute.py",
    "hook/test_ddp.py",
    "hook/test_pinned.py",
    "hook/test_recompute.py",
    "hook/test_state_pickle.py",
    "hook/test_training_state.py",
    "launch/test_on_a_cluster.py",
)
"""Files without unit tests: `make unit` and `make check` install no training framework, and import none."""
