"""How often the loop reads Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recover.rehearsal import Rehearsal

pytestmark = pytest.mark.integration


def test_a_process_that_waits_for_its_job_to_be_shown_gets_a_reading_soon(tmp_path: Path) -> None:
    """Slurm's TaskProlog asks for the restore point and waits for a second, as long as two readings are apart."""
    rehearsal = Rehearsal(tmp_path)
    loop = rehearsal.control_plane.loop

    def read_after(seconds: float) -> bool:
        """Whether a tick reads Slurm when the newest reading is so old."""
        loop.look(0.0)
        before = loop.observer.reading.at
        rehearsal.fake.advance(seconds)
        loop.tick()
        return loop.observer.reading.at != before

    assert not read_after(0.5)
    loop.read_soon()
    assert read_after(0.5)
    assert not read_after(0.5), "once"
    loop.read_soon()
    assert not read_after(0.1), "not for each of those who ask"
