"""`understudy checkpoints`: what lies in a folder, found without the jobs that wrote it."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

from click.testing import CliRunner

from tests.cli.conftest import record
from understudy_client import Record
from understudy_controlplane.cli.checkpoints import checkpoints, explanation_lines, interval_lines, tier_lines


def fill(folder: Path) -> None:
    for name in ("step-20", "step-40", "notes"):
        (folder / name).mkdir(parents=True)
    for name in ("step-20/__0_0.distcp", "step-20/.metadata", "step-40/__0_0.distcp"):
        (folder / name).write_bytes(b"12345")
    with zipfile.ZipFile(folder / "epoch=1-step=80.ckpt", "w") as archive:
        archive.writestr("data.pkl", b"")
    (folder / "notes" / "a.txt").write_text("none")
    (folder / "linked.pt").symlink_to("/etc/passwd")
    (folder / "latest").write_text("global_step100")


def test_checkpoints_of_a_folder_are_listed_with_what_is_missing_and_a_run_is_no_command(tmp_path: Path) -> None:
    fill(tmp_path)
    listed = CliRunner().invoke(checkpoints, ["scan", str(tmp_path)])
    lines = [
        re.sub(r"\d{4}-\d\d-\d\d \S+", "WHEN", line).removesuffix(":") for line in sorted(listed.output.splitlines())
    ]
    unread = "__0_0.distcp is not looked into: it is no zip file, so it does not say where it ends"
    kind = "torch.distributed.checkpoint, 0.0 MB in"
    assert (listed.exit_code, lines) == (
        0,
        [
            f"note: {tmp_path}: latest names global_step100, which is not there",
            f"step 20, {tmp_path}/step-20, {kind} 2 files, WHEN not known: {unread}",
            f"step 40, {tmp_path}/step-40, {kind} 1 file, WHEN doubtful: .metadata is missing: the save did not "
            f"come to its end",
            f"step 80, {tmp_path}/epoch=1-step=80.ckpt, torch.save, 0.0 MB in 1 file, WHEN whole",
        ],
    )
    as_json = json.loads(CliRunner().invoke(checkpoints, ["scan", "--json", str(tmp_path)]).output)
    assert [len(as_json["checkpoints"]), len(as_json["notes"])] == [3, 1]
    asked = CliRunner().invoke(checkpoints, ["pretraining", "--url", "no url"])
    assert "no url is no URL of a control plane" in asked.output


def interval(**changes: object) -> Record:
    fields = {
        "cost_seconds": 30,
        "cost_is_measured": True,
        "mtbf_seconds": 11_135,
        "today_seconds": 1800,
        "best_seconds": 798,
        "daly_seconds": 798.2,
        "gpus": 16_384,
        "gpu_hours_lost_today": 1593.4,
        "gpu_hours_lost_best": 1137.5,
        "gpu_hour_price": 3.0,
        "tiers": (),
    }
    return record(**fields | changes)


def test_what_the_interval_costs_is_shown_beside_the_best_one() -> None:
    assert list(interval_lines(interval())) == [
        "a checkpoint holds the training up for 30 s; the gang fails every 3.09 h",
        "interval now: 30 min, which costs 1,593 GPU-hours (4,780.20 at 3 each) in each hour, on 16384 GPUs",
        "best interval: 13.3 min (Daly: 13.3 min), which would cost 1,138 GPU-hours (3,412.50 at 3 each)",
    ]


def test_saves_in_memory_are_shown_before_files_where_they_are_not_behind() -> None:
    saves = [
        {"step": 57, "ranks": 3, "places": 0, "against": "the part of rank 3 is not held"},
        {"step": 54, "ranks": 4, "places": 2, "against": ""},
        {"step": 51, "ranks": 4, "places": 1, "against": ""},
    ]
    shown = record(
        answer="restore",
        step=40,
        path="/c/40",
        count=0,
        checkpoints=(),
        interval=None,
        ranks=4,
        in_memory=[{"at": 86400.0, "world_size": 4, "nodes": 2} | one for one in saves],
        attempts=(),
    )
    lines = [line.partition(", 1970")[0] for line in explanation_lines(7, shown)]
    assert lines == [
        "an attempt of job 7 with 4 ranks that begins now restores step 40: /c/40",
        "before that its ranks look into the memory of its nodes, and go on from step 54 there",
        "  passed over: step 57, in memory, parts of 3 of 4 ranks on 2 nodes",
        "  chosen: step 54, in memory, parts of 4 of 4 ranks on 2 nodes, each on 2",
        "  older: step 51, in memory, parts of 4 of 4 ranks on 2 nodes",
    ]
    behind = Record(shown | {"step": 60})
    assert not any("before that" in line for line in explanation_lines(7, behind))


def test_each_tier_is_shown_with_its_interval_and_the_failures_that_it_answers() -> None:
    assert list(tier_lines(interval())) == []
    tiers = [
        {"tier": "local", "answers": ["process"], "cost_seconds": 5, "mtbf_seconds": 86_400, "best_seconds": 600},
        {
            "tier": "shared",
            "answers": ["node", "rack"],
            "cost_seconds": 30,
            "mtbf_seconds": 12_780,
            "best_seconds": 1800,
        },
    ]
    assert list(tier_lines(interval(tiers=tiers))) == [
        "  local: every 10 min; for failures of process, one in 24 h; costs 5 s",
        "  shared: every 30 min; for failures of node or rack, one in 3.55 h; costs 30 s",
    ]
