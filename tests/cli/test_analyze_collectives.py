"""`understudy analyze collectives`: which communicators are slower than their peers, from files of NCCL Inspector."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from understudy_controlplane.cli.analyze import inspector_files
from understudy_controlplane.cli.analyze.inspector_files import InspectorFileError, analyze_collectives
from understudy_controlplane.cli.main import root
from understudy_controlplane.detect.slow_collectives import COLLECTIVES_MIN, PARTS, What

NODES, GPUS = 4, 4
WORLD = NODES * GPUS
COUNT = PARTS * COLLECTIVES_MIN


def line(rank: int, communicator: str, place: int, size: int, nodes: int, number: int, **more: Any) -> str:
    """A line of inspector_json.cc; `name` of the communicator: since 2.30."""
    known = {
        "coll": "AllReduce",
        "bytes": 2**26,
        "micros": 1000,
        "source": "kernel_gpu",
        "form": "v4.0",
        "name": "",
    } | more
    header: dict[str, Any] = {"id": communicator, "rank": place, "n_ranks": size, "nnodes": nodes}
    if known["name"]:
        header["comm_name"] = known["name"]
    content = {
        "header": header,
        "metadata": {
            "inspector_output_format_version": known["form"],
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_748_030_377_748_202 + number,
            "hostname": f"n{rank // GPUS}",
            "pid": 4000 - rank,
        },
        "coll_perf": {
            "coll": known["coll"],
            "coll_sn": number,
            "coll_msg_size_bytes": known["bytes"],
            "coll_exec_time_us": known["micros"],
            "coll_timing_source": known["source"],
            "coll_algobw_gbs": 277.210914,
            "coll_busbw_gbs": 485.119099,
        },
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def written(folder: Path, slow_rail: int | None = None, late: int | None = None, **more: Any) -> Path:
    """Each rank in a communicator of all, and in one of its rail. A rank that is late lets the others wait."""
    draw = random.Random(7)  # noqa: S311 - not for secrets
    for rank in range(WORLD):
        node, rail = divmod(rank, GPUS)
        text = []
        for number in range(COUNT):
            waits = 0 if rank == late else 700 * (late is not None)
            text.append(line(rank, "0xa11", rank, WORLD, NODES, number, micros=2000 + draw.randrange(200), **more))
            micros = round(1000 * (2.0 if rail == slow_rail else 1.0)) + draw.randrange(100) + waits
            text.append(line(rank, f"0x{rail}", node, NODES, NODES, number, micros=micros, **more))
        (folder / f"n{node}-pid{4000 - rank}.log").write_text("".join(text))
    return folder


def run(*paths: Path) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["analyze", "collectives", *map(str, paths)], env={"COLUMNS": "400"})
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["", "DP Group 7"])
def test_a_slow_rail_is_named(tmp_path: Path, name: str) -> None:
    found = analyze_collectives([written(tmp_path, slow_rail=2, name=name)])
    assert (found.processes, found.nodes, found.communicators) == (WORLD, NODES, 1 + GPUS)
    assert found.collectives == (1 + GPUS) * COUNT
    (place,) = found.places
    assert (place.what, place.place, place.nodes) == (What.RAIL, 2, ("n0", "n1", "n2", "n3"))
    code, output = run(tmp_path)
    assert code == 0
    assert "slow: GPUs or ports at place 2 of n0, n1, n2, n3: AllReduce of 67108864 bytes takes" in output
    assert "2.0 times as long as in 3 other communicators" in output
    result = CliRunner().invoke(root, ["analyze", "collectives", "--json", str(tmp_path)])
    (shown,) = json.loads(result.output)["slow"]
    assert (shown["what"], shown["place"], shown["communicators"]) == ("rail", 2, ["0x2"])


def test_a_late_rank_slows_no_communicator(tmp_path: Path) -> None:
    written(tmp_path, late=5)
    assert analyze_collectives([tmp_path]).places == ()
    assert "no communicator is slower than its peers" in run(tmp_path)[1]


def test_a_collective_counts_where_all_ranks_are_known(tmp_path: Path) -> None:
    """The shortest time of the others may be missing."""
    written(tmp_path, slow_rail=2)
    (tmp_path / "n1-pid3994.log").unlink()
    found = analyze_collectives([tmp_path])
    assert (found.places, found.collectives) == ((), (GPUS - 1) * COUNT)


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    written(tmp_path, slow_rail=2)
    link = tmp_path / "link"
    link.symlink_to(tmp_path, target_is_directory=True)
    once = analyze_collectives([tmp_path])
    assert analyze_collectives([tmp_path, link, tmp_path / "n1-pid3994.log"]) == once


def test_a_rank_that_shows_a_collective_twice_is_one_rank(tmp_path: Path) -> None:
    """Two runs in one folder do so."""
    written(tmp_path, slow_rail=2)
    once = analyze_collectives([tmp_path])
    (tmp_path / "again-pid1.log").write_text((tmp_path / "n0-pid4000.log").read_text())
    assert analyze_collectives([tmp_path]) == once
    (tmp_path / "n1-pid3996.log").write_text("".join(line(4, "0x0", 1, NODES, NODES, 900) for _ in range(2)))
    assert analyze_collectives([tmp_path]).collectives == (GPUS - 1) * COUNT, "rank 4 is missing in the others"


def test_what_is_not_compared_is_counted(tmp_path: Path) -> None:
    written(tmp_path)
    with (tmp_path / "n0-pid4000.log").open("a") as file:
        file.write(line(0, "0xa11", 0, WORLD, NODES, 900, form="v5.0"))
        file.write(line(0, "0xa11", 0, WORLD, NODES, 901, source="kernel_cpu"))
        file.write(line(0, "0xa11", 0, WORLD, NODES, 902).replace('"coll_perf"', '"p2p_perf"'))
        file.write("not JSON\n" + "[" * 10_000 + "\n")
        file.write(line(0, "0xa11", 0, WORLD, NODES, 903)[:90])
    notes = analyze_collectives([tmp_path]).notes
    assert notes == (
        "1 lines are not of the form v4.0",
        "1 lines are not timed by the GPU",
        "2 lines are not understood",
        "1 lines are of transfers, which are not compared",
    )


def test_a_process_with_several_gpus_names_no_place(tmp_path: Path) -> None:
    text = [
        line(
            rank - rank % GPUS,
            f"0x{rank % GPUS}",
            rank // GPUS,
            NODES,
            NODES,
            number,
            micros=1000 * (1 + (rank % GPUS == 2)),
        )
        for rank in range(WORLD)
        for number in range(COUNT)
    ]
    text += [line(rank - rank % GPUS, "0xa11", rank, WORLD, NODES, 1) for rank in range(WORLD)]
    (tmp_path / "all-pid1.log").write_text("".join(text))
    (place,) = analyze_collectives([tmp_path]).places
    assert (place.what, place.place) == (What.COMMUNICATOR, None)


def test_a_large_file_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, slow_rail=2)
    before = analyze_collectives([tmp_path])
    for path in tmp_path.iterdir():
        path.write_text(line(0, "0xdead", 0, 1, 1, 1) * 1000 + path.read_text())
    size = max(len(path.read_bytes()) for path in tmp_path.iterdir()) - 1000 * len(line(0, "0xdead", 0, 1, 1, 1))
    monkeypatch.setattr(inspector_files, "BYTES_MAX", size + 600)
    assert analyze_collectives([tmp_path]).places == before.places
    assert analyze_collectives([tmp_path]).communicators <= before.communicators + 1


def test_names_in_a_file_move_no_cursor(tmp_path: Path) -> None:
    written(tmp_path, slow_rail=2)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace('"n1"', '"n1\\u001b[2J"'))
    code, output = run(tmp_path)
    assert code == 0 and "\x1b[2J" not in output and "slow: GPUs or ports at place 2" in output


def test_what_is_no_file_of_inspector_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, words in (("", "no file has a collective"), ("{}\n" * 9, "no file has a collective")):
        (tmp_path / "a-pid1.log").write_text(content)
        code, output = run(tmp_path)
        assert code == 2 and words in output
    with pytest.raises(InspectorFileError, match="does not exist"):
        analyze_collectives([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InspectorFileError, match="-pidNUMBER"):
        analyze_collectives([tmp_path / "empty"])
    written(tmp_path)
    monkeypatch.setattr(inspector_files, "COLLECTIVES_MAX", 10)
    with pytest.raises(InspectorFileError, match="more than 10 collectives"):
        analyze_collectives([tmp_path])
    monkeypatch.setattr(inspector_files, "FILES_MAX", 1)
    with pytest.raises(InspectorFileError, match="more than 1 files"):
        analyze_collectives([tmp_path])
