"""`understudy check-job SCRIPT`: whether a fault could be recovered from in the job that this batch script describes.

Slurm is not asked. Pure but for reading the file.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from understudy_launcher import second_start
from understudy_launcher.batch_script import (
    Edit,
    Finding,
    Script,
    edited,
    is_in_background,
    options_of,
    read_script,
    words_of,
)
from understudy_launcher.options import Options, UsageError, parse
from understudy_launcher.second_start import ASSIGNED, RESTORED

SCRIPT_BYTES_MAX = 4 * 1024 * 1024
OPT_IN_WORD = "understudy"
SIGNALS_OF_STEPS = frozenset({"USR1", "USR2", "TERM"})
"""A seat passes these on to the launcher when Slurm signals the steps; others reach it with `B:` alone."""
STARTERS = frozenset({"srun", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec"})
"""Programs that start the training, in a script without `understudy run`."""
BLOCK_WORDS = frozenset({"fi", "done", "else", "elif", "esac", ";;", "}"})
TRAINS = re.compile(r"python|torchrun|accelerate|deepspeed|train")
FUNCTION = re.compile(r"(?:function\s+)?([\w-]+)\s*\(\)")
COMMENT = re.compile(r"--comment(?:=|\s+)(\"[^\"]*\"|'[^']*'|\S+)")
CONDITIONS = frozenset({"if", "elif", "while", "until", "!"})
EXIT_CODE = re.compile(r"(\w+)=(?:\$\?|\$\{PIPESTATUS\[0\]\})")
KEEP_SEATS = " || { sleep 60; exit 1; }"
"""The job keeps its nodes until there is a verdict."""
EDITS_MAX = 50
REFUSAL_CHARACTERS_MAX = 600
"""The refusal of a command line of `understudy run`: argparse names every unknown option in it."""
NOT_CHECKED = "options of `understudy run` with a variable ($…) are not checked"
INTERACTIVE = frozenset({"salloc"})

_GPUS = frozenset({"gpus", "G", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"})
_EMPTY, _NO_SHELL, _NUL = r"\A\s*\Z", r"\A(?!#!)", r"\0"
_UNMENDED = (_NO_SHELL, _NUL)
_REFUSED = {
    _EMPTY: "sbatch refuses an empty script",
    _NO_SHELL: "sbatch refuses it: the first line must begin with #! and name a shell, such as #!/bin/bash",
    _NUL: "sbatch refuses a script with a NUL character: remove it",
    r"\r\n": r"sbatch refuses DOS line breaks: remove them with sed -i 's/\r$//' SCRIPT",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="understudy check-job",
        description="Say whether a fault could be recovered from in the job that a batch script describes. "
        "Exits with 1 where it could not.",
    )
    parser.add_argument("script", type=Path, help="the batch script; - is standard input")
    parser.add_argument(
        "sbatch",
        nargs="*",
        default=(),
        metavar="OPTION",
        help="what sbatch is given in addition, after --, such as -- --requeue",
    )
    parser.add_argument("--fix", action="store_true", help="print the script's changes as a diff, for patch")
    given = parser.parse_args(arguments)
    if given.sbatch and not given.sbatch[0].startswith("-"):
        parser.error(f"one script at a time, and {given.sbatch[0]} is another: options of sbatch stand behind --")
    try:
        text = _read(Path("/dev/stdin") if str(given.script) == "-" else given.script)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"understudy check-job: {given.script} cannot be read: {error}\n")
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    report = sys.stdout
    if given.fix:
        mended, name, report = fixed(text, given.sbatch), str(given.script), sys.stderr
        if _is_refused(mended) and not _is_refused(text):
            mended = text
        before, after = text.splitlines(keepends=True), mended.splitlines(keepends=True)
        for line in difflib.unified_diff(before, after, name, name):
            sys.stdout.write(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        text = mended
    found = sorted(check(text, given.sbatch), key=lambda one: not one.is_problem)
    for one in found:
        where = f"line {one.line}: " if one.line else ""
        report.write(f"{'problem' if one.is_problem else 'note'}: {where}{one.text}\n")
    problems = sum(one.is_problem for one in found)
    if not problems:
        report.write(
            "A fault in this job can be recovered from, as far as its script shows, if each start of the training goes "
            "on from the newest checkpoint.\n"
        )
    return 1 if problems else 0


def fixed(text: str, sbatch: Sequence[str] = ()) -> str:
    """The script with all that needs no choice of a person mended. What sbatch refuses either way is left as it is."""
    if any(re.search(pattern, text) for pattern in _UNMENDED):
        return text
    text = text.replace("\r\n", "\n")
    for _ in range(EDITS_MAX):
        mended = (edited(text, one.edits) for one in check(text, sbatch) if one.edits)
        after = next((one for one in mended if one != text), None)
        if after is None:
            break
        text = after
    return text


def _is_refused(text: str) -> bool:
    """True where bash finds an error of syntax. Nothing of it is run."""
    try:
        done = subprocess.run(
            ["bash", "-n"], input=text.encode(errors="surrogateescape"), capture_output=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode != 0


def _read(path: Path) -> str:
    """Raises OSError, or ValueError where it is no text of a usual size. Text of another encoding than UTF-8 has
    surrogates.
    """
    with path.open("rb") as file:
        content = file.read(SCRIPT_BYTES_MAX + 1)
    if len(content) > SCRIPT_BYTES_MAX:
        raise ValueError(f"it has more than {SCRIPT_BYTES_MAX} bytes")
    if b"\0" in content and not content.startswith(b"#!"):
        raise ValueError("it is no text file")
    return content.decode(errors="surrogateescape")


def check(text: str, sbatch: Sequence[str] = ()) -> Iterator[Finding]:
    """`sbatch`: options of the command line, which go before those of the script."""
    for pattern, words in _REFUSED.items():
        if (match := re.search(pattern, text)) is not None:
            yield Finding(text.count("\n", 0, match.start()) + 1, words)
            if pattern == _EMPTY:
                return
            break
    script = read_script(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    options = script.options | {name: (0, value) for name, value in options_of(sbatch)}
    yield from script.unread
    yield from _for_every_job(script, options)
    launch = _launch(script)
    starts = [(launch[0], dict(script.commands)[launch[0]])] if launch else _starts(script) or _trainings(script)
    yield from second_start.check(script, starts, with_launcher=launch is not None)
    if launch is None:
        yield from _without_launcher(script, options)
    else:
        yield from _with_launcher(script, options, *launch)


def _for_every_job(script: Script, options: dict[str, tuple[int, str]]) -> Iterator[Finding]:
    line, comment = options.get("comment", (0, ""))
    if OPT_IN_WORD not in re.split(r"[\s,;]+", comment):
        yield Finding(
            line,
            f"the control plane does not look after this job: add #SBATCH --comment={OPT_IN_WORD}",
            edits=_with_comment(script, line, comment),
        )
    if "no-requeue" in options:
        line = options["no-requeue"][0]
        words = "with --no-requeue the job is never started again: put --requeue there"
        yield Finding(line, words, edits=_replaced(script, line, "--no-requeue", "--requeue"))
    elif "requeue" not in options:
        yield Finding(
            0,
            "unless the site requeues jobs by default, it is never started again: add #SBATCH --requeue",
            edits=(Edit(0, "#SBATCH --requeue"),),
        )
    if options.get("nodes", (0, ""))[1] == "all":
        yield Finding(
            options["nodes"][0], "with --nodes=all no node is left that could replace one: ask for a number of nodes"
        )
    if script.heterogeneous or ":" in options:
        yield Finding(
            script.heterogeneous, "a heterogeneous job is not recovered: its components need jobs of their own"
        )
    for name in ("nodelist", "nodefile"):
        if name in options:
            line, nodes = options[name]
            yield Finding(
                line,
                f"with --{name}={nodes} no other node can replace one of these: name properties (--constraint) instead",
            )
    for name in ("container-image", "container-name"):
        if name in options:
            yield Finding(
                options[name][0],
                f"with --{name} Pyxis runs the batch script in the container, where there is no srun: give it to "
                "`understudy run … --srun-args`, or to srun",
            )
    yield from _for_interactive_use(script)
    yield from _for_output(options)
    yield from _for_run(script, options)


def _for_run(script: Script, options: dict[str, tuple[int, str]]) -> Iterator[Finding]:
    """Tasks of an array are runs of their own, unless their run is named."""
    name = "NAME-$SLURM_ARRAY_TASK_ID" if "array" in options else "NAME"
    naming = [(line, text) for line, text in script.commands if "UNDERSTUDY_RUN" in text or "--run" in words_of(text)]
    if "array" in options:
        for line, text in naming:
            if (
                "$"
                not in text.partition("UNDERSTUDY_RUN=" if "UNDERSTUDY_RUN=" in text else "--run")[2].split(" -- ")[0]
            ):
                words = f"all tasks of the array are one run, and each continues another one's: write {name}"
                yield Finding(line, words)
    elif not naming and not {"job-name", "J"}.intersection(options):
        text = (
            "a new submission of this script goes on from the checkpoints of the last one: name the run, "
            f"export UNDERSTUDY_RUN={name}"
        )
        yield Finding(0, text, is_problem=False)


def _with_comment(script: Script, line: int, comment: str) -> tuple[Edit, ...]:
    if not comment:
        return (Edit(0, f"#SBATCH --comment={OPT_IN_WORD}"),)
    found = COMMENT.search(script.lines[line - 1]) if line else None
    if found is None or found[1].strip("\"'") != comment or '"' in comment:
        return ()
    return _replaced(script, line, found[0], f'--comment="{comment} {OPT_IN_WORD}"')


def _replaced(script: Script, line: int, old: str, new: str) -> tuple[Edit, ...]:
    return (Edit(line, script.lines[line - 1].replace(old, new)),) if line else ()


def _for_interactive_use(script: Script) -> Iterator[Finding]:
    for line, text in script.commands:
        words = words_of(text)
        if INTERACTIVE.intersection(words) or ("srun" in words and "--pty" in words):
            yield Finding(line, "Slurm does not start an interactive job again: start the training itself with sbatch")


def _for_output(options: dict[str, tuple[int, str]]) -> Iterator[Finding]:
    """An array's tasks are jobs of their own: each is recovered by itself."""
    line, output = options.get("output", (0, ""))
    if output and options.get("open-mode", (0, ""))[1] != "append":
        yield Finding(
            line,
            "each start of the job overwrites its output: add #SBATCH --open-mode=append",
            is_problem=False,
            edits=(Edit(0, "#SBATCH --open-mode=append"),),
        )
    if output and "array" in options and not re.search(r"%\d*[aAjJ]", output.replace("%%", "")):
        yield Finding(line, f"all tasks of the array write to {output}: name it with %A_%a", is_problem=False)


def _without_launcher(script: Script, options: dict[str, tuple[int, str]]) -> Iterator[Finding]:
    if not script.commands:
        yield Finding(0, "the script has no command")
        return
    text = (
        "it takes the pool of spares to replace a node, and the job starts again: `understudy run` replaces it within"
    )
    yield Finding(0, f"{text} the allocation, in about a second", is_problem=False)
    yield from _after_a_failure(script)
    yield from _for_environment(script, options)
    line, value = options.get("signal", (0, ""))
    flags, colon, rest = value.rpartition(":")
    name = _signal_name(rest)
    if not value:
        text = "no warning comes before the end of the time; for ranks with a handler: #SBATCH --signal=USR1@120"
        yield Finding(0, text, is_problem=False)
    elif not (colon and "B" in flags.upper()):
        text = f"SIG{name} ends each rank that has no handler for it: leave --signal out where the training has none"
        yield Finding(line, text, is_problem=False)
    elif not any(_traps(text, name) for _, text in script.commands):
        text = f"SIG{name} ends the batch script, which has no trap for it, before its time is over: write "
        yield Finding(line, f"{text}--signal={rest} for ranks with a handler, or leave it out")


def _for_environment(script: Script, options: dict[str, tuple[int, str]]) -> Iterator[Finding]:
    """sbatch passes its --export to srun, as SLURM_EXPORT_ENV (src/sbatch/opt.c)."""
    line, exported = options.get("export", (0, "ALL"))
    if any("SLURM_EXPORT_ENV" in text for _, text in script.commands):
        exported = "ALL"
    for number, text in _starts(script):
        words = words_of(text)
        if "srun" not in words:
            continue
        given = next((value for name, value in options_of(words[words.index("srun") + 1 :]) if name == "export"), "")
        if "ALL" not in (given or exported).upper().split(","):
            where = number if given else line
            what = f"with --export={given or exported} ranks get nothing that the script exports"
            how = f"such as UNDERSTUDY_… and PYTHONPATH: give srun in line {number} --export=ALL"
            yield Finding(where, f"{what}, {how}", is_problem=False)


def _traps(text: str, name: str) -> bool:
    words = words_of(text)
    return words[:1] == ["trap"] and name in map(_signal_name, words[2:])


def _after_a_failure(script: Script) -> Iterator[Finding]:
    """A rank that a faulty GPU ends is known to Slurm before there is a verdict: the job must not end with it."""
    starts = _starts(script)
    last_work = _last_work(script, starts)
    for at, (line, text) in enumerate(starts):
        until = starts[at + 1][0] if at + 1 < len(starts) else sys.maxsize
        later = (one for _, one in script.after(line, until))
        waits = any("sleep" in words_of(re.sub("[();]", " ", one)) for one in (text, *later))
        yield from _behind(script, line, text, waits=waits, works_after=last_work > line)


def _starts(script: Script) -> list[tuple[int, str]]:
    """The commands that start a training: the last that starts anything, and those before that look like one."""
    names = {
        f"${found[1]}" for _, text in script.commands if (found := ASSIGNED.match(text)) and _names_starter(found[2])
    }
    names |= {f"${{{name[1:]}}}" for name in names}
    starts = [
        (number, text)
        for number, text in script.commands
        if not ASSIGNED.match(text) and (STARTERS | names).intersection(words_of(text))
    ]
    return [one for one in starts if one is starts[-1] or TRAINS.search(one[1])]


def _trainings(script: Script) -> list[tuple[int, str]]:
    return [one for one in script.commands if TRAINS.search(one[1]) and not ASSIGNED.match(one[1])][-1:]


def _names_starter(value: str) -> bool:
    return bool(STARTERS.intersection(words_of(value.strip("\"'"))))


def _behind(script: Script, line: int, text: str, *, waits: bool, works_after: bool) -> Iterator[Finding]:
    """What has to stand behind a command that starts a training. `waits`: a `sleep` comes after it. `works_after`: what
    follows would be lost if the script ended with a failure.
    """
    words = words_of(text)
    takes_other_code = "|" in words and not script.sets_pipefail
    if takes_other_code:
        program = (words[len(words) - words[::-1].index("|") :] or ["the last program"])[0]
        yield Finding(
            line,
            f"a failure is not seen, as the exit code is that of {program}: add `set -o pipefail` above",
            edits=(Edit(line, f"set -o pipefail\n{script.lines[line - 1]}"),),
        )
    if waits and words[:1] != ["exec"]:
        if script.ends_on_errors and not any(word in text for word in ("&&", "||", "if ", "!")):
            yield Finding(
                script.ends_on_errors,
                f"the script ends as soon as the command in line {line} fails, before `sleep`: write `&& exit 0` "
                "behind it",
                edits=script.appended(line, KEEP_SEATS),
            )
        return
    edits: tuple[Edit, ...] = ()
    if words[:1] == ["exec"]:
        how = f"write it without `exec`, and `{KEEP_SEATS.strip()}` behind it"
        whole = script.lines[line - 1]
        edits = () if works_after else (Edit(line, re.sub(r"^(\s*)exec\s+", r"\1", whole)),)
    elif is_in_background(text):
        how = f"write `wait $!{KEEP_SEATS}` below it. After `wait` alone the job counts as completed"
        is_alone = len(script.in_background) == 1 and not script.has_trap
        bare = next((number for number, one in script.after(line) if one == "wait"), 0) if is_alone else 0
        if bare:
            edits = (Edit(bare, script.lines[bare - 1].replace("wait", f"wait $!{KEEP_SEATS}")),)
    elif code := next((one[1] for _, below in script.after(line)[:1] if (one := EXIT_CODE.fullmatch(below))), ""):
        how = f"write `[ ${code} = 0 ] || sleep 60` after line {script.after(line)[0][0]}"
    elif works_after or words[0] in CONDITIONS or {"&&", "||"} & set(words):
        how = "write `sleep 60` where the script goes on after the failure"
    else:
        how = f"write `{KEEP_SEATS.strip()}` behind this command"
        edits = script.appended(line, KEEP_SEATS) if _is_one_command(words) and not takes_other_code else ()
    yield Finding(
        line,
        "a rank that its node has ended ends the job before there is a verdict, and Slurm does not start it again: "
        + how,
        edits=edits,
    )


def _is_one_command(words: Sequence[str]) -> bool:
    """Nothing of the line is outside of it, and it is no branch of a `case`."""
    return not words[0].endswith(")") and not any(word != "|" and word.endswith((";", "&", "|")) for word in words)


def _last_work(script: Script, starts: Sequence[tuple[int, str]]) -> int:
    """Line of the last command that does something behind a training, such as a copy of the results; 0: there is none,
    or an error ends the script before.
    """
    if script.ends_on_errors:
        return 0
    lines = {number for number, _ in starts}
    functions = {found[1] for _, text in script.commands if (found := FUNCTION.match(text))}
    harmless = functions | BLOCK_WORDS | {"exit", "echo", "wait", "}"}
    for number, text in reversed(script.commands):
        words = words_of(text)
        if "$?" in text or (number not in lines and words and words[0] not in harmless):
            return number
    return 0


def _launch(script: Script) -> tuple[int, list[str]] | None:
    """Line and words of the command with `understudy run`."""
    for number, text in script.commands:
        words = words_of(text)
        if any(_is_launcher(words, at) for at in range(len(words))):
            return number, words
    return None


def _is_launcher(words: Sequence[str], at: int) -> bool:
    return words[at].rpartition("/")[2] == "understudy" and words[at + 1 : at + 2] == ["run"]


def _with_launcher(
    script: Script, options: dict[str, tuple[int, str]], number: int, words: Sequence[str]
) -> Iterator[Finding]:
    at = next(at for at, word in enumerate(words) if _is_launcher(words, at))
    begins = max((place + 1 for place in range(at) if words[place] in ("&&", "||", ";", "then", "do")), default=0)
    before = [word for word in words[begins:at] if "=" not in word and word != "env"]
    if "srun" in before:
        yield Finding(number, "srun would start a launcher on every node: write `exec understudy run …` without srun")
    else:
        yield from _for_exec(script, number, before, conditional=begins > 0)
    if any(one == "exec" and "=" in following for one, following in pairwise(words[begins:at])):
        text = "`exec` takes NAME=VALUE for the program: write `exec env NAME=VALUE understudy run …`"
        yield Finding(number, text, edits=_replaced(script, number, "exec ", "exec env "))
    if options.get("no-kill", (0, "off"))[1] == "off":
        yield Finding(
            options.get("no-kill", (0, ""))[0],
            "Slurm ends the whole job when it notices a dead node: add #SBATCH --no-kill",
            edits=(Edit(0, "#SBATCH --no-kill"),) if "no-kill" not in options else (),
        )
    yield from _input(number, words, at)
    yield from _restored_once(number, words)
    launch = _parsed(words[at + 2 :])
    if isinstance(launch, str):
        yield Finding(number, launch, is_problem=launch != NOT_CHECKED)
        return
    yield from _nodes(options, launch)
    yield from _ranks(options, launch)
    yield from _signal(options, launch)


def _for_exec(script: Script, number: int, before: Sequence[str], *, conditional: bool) -> Iterator[Finding]:
    """Signals reach the launcher only in the shell's place, and then no line below it ever runs."""
    later = script.after(number)
    in_a_block = conditional or any(BLOCK_WORDS.intersection(words_of(text)[:1]) for _, text in later)
    move = "move what is below it into a job of its own (sbatch --dependency=afterok:…)"
    if before != ["exec"]:
        text = "Slurm's signals reach the shell, and not the launcher: write exec before `understudy run`"
        line = script.lines[number - 1]
        how = "exec env " if "=" in words_of(line)[0] else "exec "
        edits = () if later or before or conditional else (Edit(number, re.sub(r"^\s*", rf"\g<0>{how}", line)),)
        yield Finding(number, f"{text}, and {move}" if later and not in_a_block else text, edits=edits)
    elif later and not in_a_block:
        yield Finding(later[0][0], f"this line never runs, as `exec` in line {number} ends the script: {move}")


def _restored_once(number: int, words: Sequence[str]) -> Iterator[Finding]:
    command = words[words.index("--") + 1 :] if "--" in words else []
    for before, word in zip(["", *command], command, strict=False):
        if "$" in word and RESTORED.search(f"{before if before.startswith('-') else ''} {word}"):
            text = (
                f"the shell reads {word} once: where it names a checkpoint, each later launch starts from that one too"
            )
            yield Finding(number, f"{text}. Name the folder, or ask Monitor.restore_point()", is_problem=False)


def _parsed(words: Sequence[str]) -> Options | str:
    """Options of `understudy run`, or why they could not be read."""
    if any("$" in word for word in words[: words.index("--") if "--" in words else len(words)]):
        return NOT_CHECKED
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse(words)
    except UsageError as error:
        return _shortened(f"understudy run: {error}")
    except SystemExit:
        return _shortened(printed.getvalue().strip().rpartition("\n")[2])


def _shortened(text: str) -> str:
    return text if len(text) <= REFUSAL_CHARACTERS_MAX else f"{text[:REFUSAL_CHARACTERS_MAX]} …"


def _input(number: int, words: Sequence[str], at: int) -> Iterator[Finding]:
    if "|" in words[:at] or any(word.startswith("<") for word in words):
        yield Finding(number, "ranks have no standard input: name a file that every rank can read")


def _ranks(options: dict[str, tuple[int, str]], launch: Options) -> Iterator[Finding]:
    """Slurm starts one seat on each node, whatever number of tasks the job has."""
    line, wanted = options.get("ntasks-per-node", (0, ""))
    if "gpus-per-task" in options and not (launch.torchrun or launch.binding.gpus_per_task == 0):
        yield Finding(
            options["gpus-per-task"][0],
            "each rank sees its own GPUs alone, as with srun: where programs choose a GPU by $LOCAL_RANK, ask for "
            "--gpus-per-node",
            False,
        )
    if launch.procs_per_node is not None or launch.torchrun:
        return
    if wanted == "1" and _GPUS.intersection(options):
        text = "each node gets one rank, as with srun: for one a GPU leave --ntasks-per-node out, or add --torchrun"
        yield Finding(line, text, is_problem=False)
    total, nodes = options.get("ntasks", (0, ""))[1], options.get("nodes", (0, ""))[1]
    if total.isdecimal() and nodes.isdecimal() and int(nodes) and int(total) % int(nodes):
        line = options["ntasks"][0]
        yield Finding(
            line, f"--ntasks={total} on {nodes} nodes: each node of a gang has the same number of ranks", False
        )


def _nodes(options: dict[str, tuple[int, str]], launch: Options) -> Iterator[Finding]:
    line, value = options.get("nodes", (0, ""))
    least, _, most = value.partition("-")
    if not least.isdecimal():
        yield Finding(line, f"how many nodes the job gets is not known: add #SBATCH --nodes={launch.nodes + 1}")
    elif int(least) < launch.nodes:
        yield Finding(
            line, f"the job may get {least} nodes, and the gang needs {launch.nodes} (`understudy run --nodes`)"
        )
    elif int(least) == launch.nodes and (not most or most == least):
        yield Finding(
            line,
            f"no spare: the gang needs all {least} nodes, and a dead one costs a requeue; add a node",
            is_problem=False,
        )


def _signal(options: dict[str, tuple[int, str]], launch: Options) -> Iterator[Finding]:
    """sbatch: --signal=[{R|B}:]<sig_num>[@sig_time] (https://slurm.schedmd.com/sbatch.html)."""
    line, value = options.get("signal", (0, ""))
    if not value:
        yield _no_warning()
        return
    flags, colon, rest = value.rpartition(":")
    name = _signal_name(rest)
    wanted = launch.checkpoint_signal.name.removeprefix("SIG")
    to_script = bool(colon) and "B" in flags.upper()
    if name != wanted and to_script:
        yield Finding(
            line,
            f"SIG{name} ends the launcher, which waits for SIG{wanted}: --signal=B:{wanted}@120, or `understudy run "
            f"--checkpoint-signal {name}`",
        )
    elif name != wanted:
        yield Finding(
            line, f"the launcher waits for SIG{wanted}, and SIG{name} reaches the ranks alone: --signal=B:{wanted}@120"
        )
    elif not to_script and name not in SIGNALS_OF_STEPS:
        yield Finding(line, f"SIG{name} reaches the launcher with B: alone: --signal=B:{name}@120")


def _signal_name(text: str) -> str:
    """The text is NAME@SECONDS or NUMBER@SECONDS."""
    name = text.partition("@")[0].upper().removeprefix("SIG")
    return {"10": "USR1", "12": "USR2", "15": "TERM", "1": "HUP", "23": "URG", "28": "WINCH"}.get(name, name)


def _no_warning() -> Finding:
    text = "no warning comes before the end of the time, for a last checkpoint: #SBATCH --signal=B:USR1@120"
    return Finding(0, text, is_problem=False)


if __name__ == "__main__":
    sys.exit(main())
