"""`understudy support-bundle`: what it collects, and what it leaves out."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.notify.site import secret_file
from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.cli.support_bundle import contents, support_bundle
from understudy_controlplane.config import Notify

PASSWORD = "correct-horse-battery"


@pytest.mark.integration
def test_it_has_the_incident_of_that_time_and_no_secret(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    begin = rehearsal.clock.now()
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    current = rehearsal.control_plane.reads.current.config
    address = secret_file(tmp_path / "url", f"https://hooks.example/{PASSWORD}")
    receivers = {"hook": {"kind": "webhook", "url_file": address, "secret_file": address}}
    config = current.model_copy(update={"notify": Notify.model_validate({"receivers": receivers})})
    found = dict(contents(config, begin, rehearsal.clock.now() + 1))
    assert PASSWORD not in b"".join(found.values()).decode()
    assert json.loads(found["config.json"])["notify"]["receivers"]["hook"]["url_file"] == address
    assert json.loads(found["versions.json"])["packages"]["slurm-understudy"]
    (incident,) = (json.loads(line) for line in found["incidents.jsonl"].splitlines())
    assert incident["subject"] == "n3"
    assert {json.loads(line)["action"] for line in found["decisions.jsonl"].splitlines()} >= {"quarantine"}
    assert b"hold_seats" in found["recoveries.jsonl"]
    before = dict(contents(config, begin - 20, begin - 10))
    assert [before[f"{name}.jsonl"] for name in ("decisions", "incidents", "recoveries")] == [b"", b"", b""]


@pytest.mark.integration
def test_what_cannot_be_had_does_not_keep_the_rest_back_and_no_file_is_overwritten(tmp_path: Path) -> None:
    config = tmp_path / "controlplane.toml"
    server, slurm = f'database = "sqlite:///{tmp_path}/none/fleet.db"', 'scontrol = "/nowhere/scontrol"'
    config.write_text(f'cluster = "c"\n[server]\n{server}\n[slurm]\n{slurm}\n')
    file = tmp_path / "bundle.tar.gz"
    arguments = [str(file), "--config", str(config)]
    assert CliRunner().invoke(support_bundle, arguments).exit_code == 0
    with tarfile.open(file) as archive:
        texts = {name.rpartition("/")[2]: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]  # all are files
    assert texts["decisions.jsonl"].startswith("cannot be had: ")
    assert "install Slurm's client commands" in texts["slurm.json"]
    assert json.loads(texts["config.json"])["cluster"] == "c"
    assert not (tmp_path / "none").exists()
    assert CliRunner().invoke(support_bundle, arguments).exit_code == 2
