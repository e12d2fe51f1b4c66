"""`understudy check-job SCRIPT`: whether a fault could be recovered from in the job that this batch script describes.

The script is read as sbatch does (src/sbatch/opt.c and sbatch.c, the same from 22.05 to 26.05). Slurm is not asked.
Pure but for reading the file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy_launcher.options import Options, UsageError, parse

SCRIPT_BYTES_MAX = 4 * 1024 * 1024
OPT_IN_WORD = "understudy"
SIGNALS_OF_STEPS = frozenset({"USR1", "USR2", "TERM"})
"""A seat passes these on to the launcher when Slurm signals the steps; others reach it with `B:` alone."""
STARTERS = frozenset({"srun", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec"})
"""Programs that start the training, in a script without `understudy run`."""
BLOCK_WORDS = frozenset({"fi", "done", "else", "elif", "esac", ";;", "}"})
RESTORED = re.compile(r"ckpt|checkpoint|resume|restore|latest", re.IGNORECASE)
NOT_CHECKED = "options of `understudy run` with a variable ($…) are not checked"
INTERACTIVE = frozenset({"salloc"})

_SHORT = {"N": "nodes", "k": "no-kill", "w": "nodelist", "F": "nodefile", "a": "array", "t": "time", "n": "ntasks"}
_GPUS = frozenset({"gpus", "G", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"})
_FLAGS = frozenset({"no-kill", "requeue", "no-requeue", "exclusive", "overcommit", "hold", "parsable", "wait"})
_DIRECTIVE = re.compile(r"#(?:SBATCH|SLURM)")
_HETEROGENEOUS = re.compile(r"\s*(hetjob|packjob)(?!\S)", re.IGNORECASE)
_REFUSED = {
    r"\A\s*\Z": "sbatch refuses an empty script",
    r"\A(?!#!)": "sbatch refuses it: the first line must begin with #! and name a shell, such as #!/bin/bash",
    r"\0": "sbatch refuses a script with a NUL character: remove it",
    r"\r\n": r"sbatch refuses DOS line breaks: remove them with sed -i 's/\r$//' SCRIPT",
}


@dataclass(frozen=True, slots=True)
class Finding:
    line: int
    """Line of the script; 0: none."""
    text: str
    """What it leads to, and what to do."""
    is_problem: bool = True
    """False: a note."""


@dataclass(frozen=True, slots=True)
class Script:
    """What sbatch reads in a batch script."""

    options: dict[str, tuple[int, str]]
    """Name → line and value."""
    unread: tuple[Finding, ...]
    """Lines with #SBATCH that sbatch ignores or refuses."""
    heterogeneous: int
    """Line of a component's separator; 0: there is none."""
    commands: tuple[tuple[int, str], ...]
    """Number and text of each line with commands; lines that a backslash continues are joined."""
    ends_on_errors: int
    """Line of `set -e`, or of `#!/bin/bash -e`; 0: there is none."""

    def after(self, line: int) -> list[tuple[int, str]]:
        return [(number, text) for number, text in self.commands if number > line]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="understudy check-job",
        description="Say whether a fault could be recovered from in the job that a batch script describes. "
        "Exits with 1 where it could not.",
    )
    parser.add_argument("script", type=Path, help="the batch script; - is standard input")
    parser.add_argument(
        "sbatch", nargs="*", metavar="OPTION", help="what sbatch is given in addition, after --, such as -- --requeue"
    )
    given = parser.parse_args(arguments)
    try:
        text = _read(Path("/dev/stdin") if str(given.script) == "-" else given.script)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"understudy check-job: {given.script} cannot be read: {error}\n")
        return 2
    found = list(check(text, given.sbatch))
    for one in found:
        where = f"line {one.line}: " if one.line else ""
        sys.stdout.write(f"{'problem' if one.is_problem else 'note'}: {where}{one.text}\n")
    problems = sum(one.is_problem for one in found)
    if not problems:
        sys.stdout.write("A fault in this job can be recovered from, as far as its script shows.\n")
    return 1 if problems else 0


def _read(path: Path) -> str:
    """Raises OSError, or ValueError where it is no text of a usual size."""
    with path.open("rb") as file:
        content = file.read(SCRIPT_BYTES_MAX + 1)
    if len(content) > SCRIPT_BYTES_MAX:
        raise ValueError(f"it has more than {SCRIPT_BYTES_MAX} bytes")
    return content.decode(errors="replace")


def check(text: str, sbatch: Sequence[str] = ()) -> Iterator[Finding]:
    """`sbatch`: options of the command line, which go before those of the script."""
    for pattern, words in _REFUSED.items():
        if (match := re.search(pattern, text)) is not None:
            yield Finding(text.count("\n", 0, match.start()) + 1, words)
            break
    script = read_script(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    options = script.options | {name: (0, value) for name, value in _options(sbatch)}
    yield from script.unread
    yield from _for_every_job(script, options)
    launch = _launch(script)
    if launch is None:
        yield from _without_launcher(script, options)
    else:
        yield from _with_launcher(script, options, *launch)


def read_script(text: str) -> Script:
    options: dict[str, tuple[int, str]] = {}
    unread: list[Finding] = []
    commands: list[tuple[int, str]] = []
    heterogeneous, continues, ends_on_errors = 0, False, 0
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if _ends_on_errors(number, stripped):
            ends_on_errors = ends_on_errors or number
        elif re.match(r"set \+([a-zA-Z]*e|o errexit)", stripped):
            ends_on_errors = 0
        if directive := _DIRECTIVE.match(line):
            rest = line[directive.end() :]
            if commands:
                words = "sbatch ignores this #SBATCH line, as a command stands before it: move it up"
                unread.append(Finding(number, words))
            elif _HETEROGENEOUS.match(rest):
                heterogeneous = heterogeneous or number
            elif _has_open_quote(rest):
                unread.append(Finding(number, "sbatch refuses this line: a quotation mark has no second one"))
            else:
                options |= {name: (number, value) for name, value in _options(_words(rest))}
        elif _DIRECTIVE.match(stripped) and not commands:
            unread.append(Finding(number, "sbatch ignores this #SBATCH line: remove the blanks before it"))
        elif continues:
            first, begun = commands[-1]
            commands[-1] = (first, f"{begun.removesuffix(chr(92))} {stripped}")
            continues = stripped.endswith("\\")
        elif stripped and not stripped.startswith("#"):
            commands.append((number, stripped))
            continues = stripped.endswith("\\")
    return Script(options, tuple(unread), heterogeneous, tuple(commands), ends_on_errors)


def _ends_on_errors(number: int, line: str) -> bool:
    words = line.split()
    if number == 1 and line.startswith("#!"):
        return any(re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", word) for word in words[1:])
    short = any(re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*;?", word) for word in words[1:])
    return words[:1] == ["set"] and (short or "errexit" in line)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote without its end: the shell complains
        return text.split()


def _has_open_quote(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError as error:
        return "quotation" in str(error)
    return False


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each; the value of a flag is empty."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = _SHORT.get(word[1], word[1]), word[2:], word[2:].removeprefix("=")
        else:
            if word == ":":  # the next component of a heterogeneous job
                yield word, ""
            continue
        if not equals and name not in _FLAGS and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value


def _for_every_job(script: Script, options: dict[str, tuple[int, str]]) -> Iterator[Finding]:
    line, comment = options.get("comment", (0, ""))
    if OPT_IN_WORD not in re.split(r"[\s,;]+", comment):
        yield Finding(line, f"the control plane does not look after this job: add #SBATCH --comment={OPT_IN_WORD}")
    if "no-requeue" in options:
        yield Finding(options["no-requeue"][0], "with --no-requeue the job is never started again: put --requeue there")
    elif "requeue" not in options:
        yield Finding(0, "unless the site requeues jobs by default, it is never started again: add #SBATCH --requeue")
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
    named = {"job-name", "J"}.intersection(options) or any(
        "UNDERSTUDY_RUN" in text or "--run" in _words(text) for _, text in script.commands
    )
    if not named:
        text = (
            "the job continues one of the same name, folder and arguments, and its name is the script's: name the run, "
            "export UNDERSTUDY_RUN=NAME"
        )
        yield Finding(0, text, is_problem=False)


def _for_interactive_use(script: Script) -> Iterator[Finding]:
    for line, text in script.commands:
        words = _words(text)
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


def _traps(text: str, name: str) -> bool:
    words = _words(text)
    return words[:1] == ["trap"] and name in map(_signal_name, words[2:])


def _after_a_failure(script: Script) -> Iterator[Finding]:
    """A rank that a faulty GPU ends is known to Slurm before there is a verdict: the job must not end with it."""
    starts = [(number, text) for number, text in script.commands if STARTERS.intersection(_words(text))]
    if not starts:
        return
    line, text = starts[-1]
    waits = [text, *(later for _, later in script.after(line))]
    if _words(text)[:1] == ["exec"] or not any("sleep" in _words(re.sub("[();]", " ", one)) for one in waits):
        yield Finding(
            line,
            "a rank that its node has ended ends the job before there is a verdict, and Slurm does not start it again: "
            "write `&& exit 0` behind this command, and below it `sleep 60` and `exit 1`",
        )
    elif script.ends_on_errors and not any(word in text for word in ("&&", "||", "if ", "!")):
        yield Finding(
            script.ends_on_errors,
            f"the script ends as soon as the command in line {line} fails, before `sleep`: write `&& exit 0` behind it",
        )


def _launch(script: Script) -> tuple[int, list[str]] | None:
    """Line and words of the command with `understudy run`."""
    for number, text in script.commands:
        words = _words(text)
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
    before = [word for word in words[begins:at] if "=" not in word]
    if "srun" in before:
        yield Finding(number, "srun would start a launcher on every node: write `exec understudy run …` without srun")
    else:
        yield from _for_exec(script, number, before, conditional=begins > 0)
    if options.get("no-kill", (0, "off"))[1] == "off":
        yield Finding(
            options.get("no-kill", (0, ""))[0],
            "Slurm ends the whole job when it notices a dead node: add #SBATCH --no-kill",
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
    in_a_block = conditional or any(BLOCK_WORDS.intersection(_words(text)[:1]) for _, text in later)
    move = "move what is below it into a job of its own (sbatch --dependency=afterok:…)"
    if before != ["exec"]:
        text = "Slurm's signals reach the shell, and not the launcher: write exec before `understudy run`"
        yield Finding(number, f"{text}, and {move}" if later and not in_a_block else text)
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
        return f"understudy run: {error}"
    except SystemExit:
        return printed.getvalue().strip().rpartition("\n")[2]


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
