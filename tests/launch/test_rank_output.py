"""What ranks write, through their seat: files, labels, the last lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from understudy_launcher.options import UsageError, parse
from understudy_launcher.rank_output import LAST_BYTES_MAX, Console, OutputOptions, Outputs, Relay, Stream, path_of
from understudy_launcher.seat import _parse as parse_seat

RANK_5 = {
    "SLURM_JOB_ID": "4712",
    "SLURM_ARRAY_JOB_ID": "4700",
    "SLURM_ARRAY_TASK_ID": "12",
    "SLURM_JOB_NAME": "llama/70b",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "NODE_RANK": "2",
    "SLURMD_NODENAME": "c3",
    "UNDERSTUDY_LAUNCH": "4",
    "USER": "ada",
}


class Written(Console):
    """The seat's own output."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[tuple[Stream, bytes]] = []

    def put(self, stream: Stream, piece: bytes) -> None:
        self.pieces.append((stream, piece))

    def of(self, stream: Stream) -> bytes:
        return b"".join(piece for one, piece in self.pieces if one is stream)


def spoken(options: OutputOptions, output: bytes = b"", errors: bytes = b"") -> tuple[Written, Outputs, list[Relay]]:
    """What becomes of what rank 5 writes."""
    console = Written()
    outputs = Outputs(options, console)
    relays = list(outputs.open())
    outputs.speak_for(relays, RANK_5)
    for one in relays:
        os.write(one.write_end, output if one.stream is Stream.OUTPUT else errors)
    outputs.started(77, relays)
    outputs.finish(5)
    return console, outputs, relays


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("out-%t.log", "out-5.log"),
        ("%j/%N/%5t-%n.%s", "4712/c3/00005-2.3"),
        ("%A_%a/%L", "4700_12/4"),
        ("%x-%u-%J", "llama_70b-ada-4712.3"),
        ("100%%", "100%"),
    ],
)
def test_files_are_named_as_srun_names_them(pattern: str, path: str) -> None:
    assert path_of(pattern, RANK_5) == path


def test_by_default_only_standard_error_passes_through_the_seat() -> None:
    console, _, relays = spoken(OutputOptions(), errors=b"oh\n")
    assert [one.stream for one in relays] == [Stream.ERROR]
    assert console.pieces == [(Stream.ERROR, b"oh\n")]


def test_a_file_for_each_rank_and_none_of_it_in_the_jobs_output(tmp_path: Path) -> None:
    options = OutputOptions(output=f"{tmp_path}/%L/%t/out", error=f"{tmp_path}/%L/%t/err")
    console, _, _ = spoken(options, b"one\n", b"two\n")
    assert ((tmp_path / "4/5/out").read_bytes(), (tmp_path / "4/5/err").read_bytes()) == (b"one\n", b"two\n")
    assert console.pieces == []


def test_without_a_file_of_its_own_standard_error_goes_to_that_of_standard_output(tmp_path: Path) -> None:
    spoken(OutputOptions(output=f"{tmp_path}/%t"), b"one\n", b"two\n")
    assert sorted((tmp_path / "5").read_text().splitlines()) == ["one", "two"]


@pytest.mark.parametrize(
    ("tee", "shown"), [(0, (b"", b"")), (1, (b"one\n", b"")), (2, (b"", b"two\n")), (3, (b"one\n", b"two\n"))]
)
def test_tee_shows_streams_in_the_jobs_output_too(tee: int, shown: tuple[bytes, bytes], tmp_path: Path) -> None:
    console, _, _ = spoken(OutputOptions(output=f"{tmp_path}/o", error=f"{tmp_path}/e", tee=tee), b"one\n", b"two\n")
    assert (console.of(Stream.OUTPUT), console.of(Stream.ERROR)) == shown


def test_labels_stand_before_every_line() -> None:
    console, _, _ = spoken(OutputOptions(label=True), b"a\nb\nno end", b"e\n")
    assert console.of(Stream.OUTPUT) == b"5: a\n5: b\n5: no end\n"
    assert console.of(Stream.ERROR) == b"5: e\n"


def test_other_local_ranks_are_not_shown_and_their_last_lines_are_kept() -> None:
    console, _, relays = spoken(OutputOptions(only_local_ranks=frozenset({0})), b"a\n", b"e\n")
    assert console.pieces == []
    assert relays[-1].last_words() == "e"


def test_the_last_lines_are_kept() -> None:
    lines = [f"line {number}" for number in range(500)]
    _, _, relays = spoken(OutputOptions(), errors="\n".join(lines).encode())
    assert relays[0].last_words().splitlines() == lines[-50:]
    _, _, relays = spoken(OutputOptions(), errors=b"x" * 30_000 + b"\nlast\n")
    assert relays[0].last_words() == "last", "a line whose beginning is cut is left out"
    assert LAST_BYTES_MAX == 8192


def test_a_file_that_cannot_be_written_is_reported_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    console, _, _ = spoken(OutputOptions(output=f"{tmp_path}/file/%t"), b"kept\n")
    assert console.of(Stream.OUTPUT) == b"kept\n"
    assert b"cannot write" in console.of(Stream.ERROR)


def test_a_warm_interpreter_speaks_for_no_rank_until_it_becomes_a_rank(tmp_path: Path) -> None:
    console = Written()
    outputs = Outputs(OutputOptions(output=f"{tmp_path}/%t", label=True), console)
    relays = outputs.open()
    outputs.started(77, [])
    os.write(relays[0].write_end, b"import warning\n")
    while not console.pieces:
        relays[0].wait(0.001)
    outputs.speak_for(relays, RANK_5)
    os.write(relays[0].write_end, b"a rank now\n")
    outputs.started(78, relays)
    outputs.finish(5)
    assert console.of(Stream.OUTPUT) == b"import warning\n"
    assert (tmp_path / "5").read_text() == "a rank now\n"


def options_of(*words: str) -> OutputOptions:
    """What a seat makes of the launcher's command line."""
    output = parse(["--nodes", "2", *words, "--", "true"]).output.for_seat()
    given = parse_seat(["--port=1", "--generation=0", "--certificate=00", f"--output={output}"])
    return cast("OutputOptions", given.output)


def test_the_launchers_options_reach_its_seats() -> None:
    assert options_of(
        "-o", "out-%t", "-e", "err-%t", "--tee", "2", "-l", "--local-ranks-filter", "0,3"
    ) == OutputOptions("out-%t", "err-%t", 2, True, frozenset({0, 3}))
    assert options_of() == OutputOptions()
    logs = options_of("--log-dir", "logs/")
    assert (logs.output, logs.error) == ("logs/%j/launch_%L/%t/stdout.log", "logs/%j/launch_%L/%t/stderr.log")


def test_torchrun_gets_them_as_its_own() -> None:
    given = options_of("--torchrun", "--log-dir", "logs", "--tee", "3", "--local-ranks-filter", "0")
    assert given == OutputOptions(
        torchrun=("--log-dir=logs/%j/launch_%L/node_%n", "--redirects=3", "--tee=3", "--local-ranks-filter=0")
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--log-dir", "a", "-o", "b"], "leave --output and --error out"),
        (["--tee", "3"], "without --log-dir, --output or --error"),
        (["-o", "%q"], "of codes with %"),
        (["--local-ranks-filter", "0,a"], "numbers, with commas"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(["--nodes", "1", *words, "--", "true"])
