"""The parameters of a site of tests, which stand in no configuration."""

from __future__ import annotations

from pathlib import Path

from tests.testbed.serve import PARAMETERS_FILE, load
from understudy_controlplane.config.current import ConfigFile, CurrentConfig


def test_they_stay_in_force_when_the_file_is_read_again(tmp_path: Path) -> None:
    """Each control plane that takes the lead reads it again."""
    file = tmp_path / "controlplane.toml"
    file.write_text('cluster = "testbed"\n')
    file.with_name(PARAMETERS_FILE).write_text('{"silence": {"silent_after_seconds": 3.25}}')
    current = CurrentConfig(load(file), ConfigFile(file, load=load))
    file.write_text('cluster = "testbed"\n[spares]\ncount = 7\n')
    assert current.file is not None
    current.file.request()
    current.follow()
    assert (current.config.silence.silent_after_seconds, current.config.spares.count) == (3.25, 7)
