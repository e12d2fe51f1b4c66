"""`understudy analyze steps`: the service's verdict on a file, whatever shape the file is in."""

from __future__ import annotations

import csv
import gzip
import io
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from understudy_controlplane.cli.main import root

DATA = Path(__file__).resolve().parents[1] / "data"
SLOW_WORKER = DATA / "steps-slow-worker.csv.gz"


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(root, ["analyze", "steps", *map(str, arguments)], input=stdin)


def judged(*arguments: object, stdin: bytes | None = None) -> dict[str, Any]:
    result = run("--json", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def rows(path: Path = SLOW_WORKER) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def as_csv(table: list[dict[str, str]], columns: list[str] | None = None) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns or list(table[0]), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(table)
    return out.getvalue().encode()


def suspects(result: dict[str, Any]) -> list[int]:
    return [one["rank"] for one in result["suspects"]]


def test_the_slow_worker_is_named_with_its_first_slow_step() -> None:
    result = judged(SLOW_WORKER)
    (slow,) = result["suspects"]
    assert slow["rank"] == 0
    assert slow["first_step"] == 16
    assert 2.3 < slow["ratio"] < 2.4
    assert slow["z"] > 10
    assert (result["ranks"], result["steps"], result["refused"], result["gaps"]) == (16, 44, 0, 0)


def test_no_rank_is_named_where_none_is_at_fault() -> None:
    assert suspects(judged(DATA / "steps-sequence-imbalance.csv.gz")) == []


def test_a_worker_that_is_slow_in_every_second_step_is_named_as_well() -> None:
    times = np.random.default_rng(1).lognormal(0, 0.02, (100, 16))
    times[1::2, 3] *= 1.6
    table = [
        {"step": str(step), "rank": str(rank), "self_seconds": f"{seconds:.4f}"}
        for (step, rank), seconds in np.ndenumerate(times)
    ]
    (slow,) = judged("-", stdin=as_csv(table))["suspects"]
    assert (slow["rank"], slow["steps_averaged"]) == (3, 2)


def test_forty_steps_are_enough() -> None:
    first = sorted({int(row["step"]) for row in rows()})[:40]
    assert suspects(judged("-", stdin=as_csv([row for row in rows() if int(row["step"]) in first]))) == [0]


def test_people_get_a_table() -> None:
    result = run(SLOW_WORKER)
    assert result.exit_code == 0
    assert "2.35" in result.stdout
    assert "no rank is slow" in run(DATA / "steps-sequence-imbalance.csv.gz").stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_columns_and_lines_is_of_no_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rows()
    columns = list(table[0])
    rng.shuffle(columns)
    rng.shuffle(table)
    result, straight = judged("-", stdin=gzip.compress(as_csv(table, columns))), judged(SLOW_WORKER)
    assert {**result, "file": ""} == {**straight, "file": ""}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_table_that_a_spreadsheet_saved_is_read(encoding: str) -> None:
    table = as_csv(rows()).decode().replace("\r\n", "\n").replace("\n", "\r\n")
    assert suspects(judged("-", stdin=table.encode(encoding))) == [0]


def test_without_roles_the_slow_worker_is_still_named() -> None:
    columns = ["step", "rank", "forward_seconds", "backward_seconds"]
    assert suspects(judged("-", stdin=as_csv(rows(), columns))) == [0]


def test_gaps_are_counted_and_hide_no_rank() -> None:
    table = rows()
    for number, row in enumerate(table):
        if number % 7 == 0:
            row["forward_seconds"] = ["nan", "", "NaN"][number % 3]
    result = judged("-", stdin=as_csv(table[: len(table) - 5]))
    assert suspects(result) == [0]
    assert result["gaps"] >= len(table) // 7


def test_nonsense_is_refused_in_words_with_its_line_and_the_rest_is_judged() -> None:
    lines = as_csv(rows()).splitlines(keepends=True)
    nonsense = [
        b"hello\n",
        b"1,2,3,4,5,6,7,8,9,10,11,12\n",
        b"x,0,0,0,0,1,1,1,1,1\n",
        b"17,-1,0,0,0,1,1,1,1,1\n",
        b"17,0.5,0,0,0,1,1,1,1,1\n",
        b"17,0,0,0,0,1,a second,1,1,1\n",
        b"17,0,0,0,0,1,-3,1,1,1\n",
        b"17,0,0,0,0,1,inf,1,1,1\n",
        b"\xff\xfe\x00\n",
        lines[1],
    ]
    result = judged("-", stdin=b"".join([*lines[:100], *nonsense, *lines[100:]]))
    assert suspects(result) == [0]
    assert result["refused"] == len(nonsense)
    assert [one["line"] for one in result["refused_lines"]] == list(range(101, 101 + len(nonsense)))
    words = " ".join(one["why"] for one in result["refused_lines"])
    assert "1 fields, but the first line names 10" in words
    assert "step 'x' is no number" in words
    assert "occurs twice: the first counts" in words


def test_only_the_first_refused_lines_are_shown_and_all_are_counted() -> None:
    result = judged("-", stdin=as_csv(rows()) + b"rubbish\n" * 5000)
    assert result["refused"] == 5000
    assert len(result["refused_lines"]) == 20


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\x00\x01\x02", "no column step"),
        (b"step,rank,start,end\n1,2,0,1\n", "Wall time is the same on every rank"),
        (
            b"step,rank,self_seconds\nx,y,z\n",
            "the file contains no step time; 1 line was refused, the first (line 2)",
        ),
        (b"\x1f\x8b\x08rubbish", "cannot be read"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 50, "cannot be read"),  # well packed, but for its content
    ],
)
def test_a_file_that_cannot_be_judged_is_refused_in_words(content: bytes, words: str) -> None:
    result = run("-", stdin=content)
    assert result.exit_code == 2
    assert words in result.output


def test_a_file_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    result = run(tmp_path / "absent.csv")
    assert result.exit_code == 2
    assert "No such file" in result.output


def test_what_is_not_judged_is_reported() -> None:
    table = [row for row in rows() if row["stage"] != "3" or int(row["dp_rank"]) < 2]
    assert any("3 (2)" in note for note in judged("-", stdin=as_csv(table))["notes"])
    short = [row for row in rows() if int(row["step"]) < 100]
    assert any("steps are too few" in note for note in judged("-", stdin=as_csv(short))["notes"])


def varying(columns: list[str], slow: int = 12) -> bytes:
    """Eight replicas of two stages whose work varies; one rank is a tenth slower from step 40 on."""
    rng = np.random.default_rng(1)
    table = []
    for step in range(100):
        work = np.exp(rng.normal(0, 0.2, 8))
        for rank in range(16):
            stage, replica = divmod(rank, 8)
            pace = 1.1 if rank == slow and step >= 40 else 1.0
            row = {"step": step, "rank": rank, "stage": stage, "dp_rank": replica, "work": f"{1e6 * work[replica]:.0f}"}
            seconds = f"{(1 + stage + work[replica]) * pace * rng.normal(1, 0.005):.6f}"
            table.append({name: str(value) for name, value in row.items()} | {"self_seconds": seconds})
    return as_csv(table, ["step", "rank", "stage", "self_seconds", *columns])


@pytest.mark.parametrize("columns", [["dp_rank"], ["work"], ["dp_rank", "work"], []])
def test_work_is_taken_out_where_columns_or_other_stages_show_it(columns: list[str]) -> None:
    (slow,) = judged("-", stdin=varying(columns))["suspects"]
    assert slow["rank"] == 12
    assert 1.08 < slow["ratio"] < 1.12


def test_a_rank_of_two_replicas_and_impossible_work_are_refused_in_words() -> None:
    lines = b"step,rank,self_seconds,dp_rank,work\n1,0,1,0,5\n2,0,1,1,5\n3,0,1,0,-5\n4,0,1,x,5\n5,0,1,,\n"
    refused = judged("-", stdin=lines)["refused_lines"]
    assert [one["line"] for one in refused] == [3, 4, 5]
    assert "dp_rank 1 here and 0 before" in refused[0]["why"]
    assert "work '-5' is impossible" in refused[1]["why"]
    assert "dp_rank 'x' is no number" in refused[2]["why"]


def test_a_role_that_was_not_given_is_not_taken_for_a_fault() -> None:
    rng = np.random.default_rng(1)
    work = [1.0] * 6 + [1.3] * 2
    lines = [f"{step},{rank},{work[rank] * rng.lognormal(0, 0.02):.5f}\n" for step in range(80) for rank in range(8)]
    result = judged("-", stdin=("step,rank,self_seconds\n" + "".join(lines)).encode())
    assert suspects(result) == []
    assert [one["rank"] for one in result["not_named"]] == [6, 7]
    assert "without a role" in result["not_named"][0]["why"]


@pytest.mark.integration
def test_a_large_file_is_judged_in_bounded_memory(tmp_path: Path) -> None:
    """100,000 ranks with twenty steps each, in an address space that could not hold the file as objects."""
    path = tmp_path / "large.csv"
    ranks = np.arange(100_000)
    rng = np.random.default_rng(1)
    pace = np.where(ranks == 77_777, 1.5, 1.0)
    with path.open("w") as file:
        file.write("step,rank,self_seconds\n")
        for step in range(20):
            times = pace * rng.lognormal(0, 0.02, len(ranks))
            file.write("".join(f"{step},{rank},{seconds:.4f}\n" for rank, seconds in enumerate(times)))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (500_000_000, 500_000_000))

    command = [
        sys.executable,
        "-c",
        "from understudy_controlplane.cli.main import main; main()",
        "analyze",
        "steps",
        str(path),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert suspects(result) == [77_777]
    assert result["ranks"] == 100_000
