"""What a batch script does differently, or fails at, when Slurm starts its job a second time.

Slurm runs the script of a requeued job from its first line, on other nodes, among the files of the first attempt.
`starts` are the commands that start the training. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy_launcher.batch_script import Edit, Finding, Script, UnfinishedWord, split, words_of

Starts = Sequence[tuple[int, str]]

COUNT = "SLURM_RESTART_COUNT"
"""Slurm sets it from a job's second start on."""
AT_THE_FIRST_START = f'[ "${{{COUNT}:-0}}" -gt 0 ] || '
RESTORED = re.compile(r"ckpt|checkpoint|resume|restore|latest", re.IGNORECASE)
KEPT = re.compile(
    rf"{RESTORED.pattern}|save|output|out_dir|(?:exp|work|root|run|project)[_.-]?dir|run\.dir", re.IGNORECASE
)
TEMPORARY = re.compile(r"te?mp|lock|part(?:ial)?|\.log|\.pid", re.IGNORECASE)
LOCAL = ("/tmp", "/dev/shm", "$TMPDIR", "${TMPDIR}", "$SLURM_TMPDIR", "${SLURM_TMPDIR}")  # noqa: S108 - read, not used
NEW_EACH_TIME = re.compile(rf"\$\(date|`date|\$\{{?S?RANDOM|\$\$|mktemp|uuidgen|EPOCHSECONDS|{COUNT}")
STARTS_AT_ZERO = ("--overwrite_output_dir", "--overwrite-output-dir", "--no-resume", "--init_from=scratch")
HOST = re.compile(
    r"(?:MASTER_ADDR=|--(?:master[_-]addr|main_process_ip|rdzv[_-]endpoint)[= ])"
    r"[\"']?(?!localhost|127\.)([A-Za-z0-9][\w.-]*)"
)
WRITES = re.compile(r"(?<![<>=&\d-])((?:(?<=\s)\d|&)?>)(?![>&(|])\s*([^\s;|&<>]+)")
PROGRAM = re.compile(r"\.py$|(?:^|/)(?:python|torchrun|accelerate|deepspeed)")
"""Options before it are those of srun or `understudy run`."""
ASSIGNED = re.compile(r"(?:export\s+|readonly\s+|local\s+)?(\w+)=(.*)", re.DOTALL)
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")

_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
OPERATOR = re.compile(r"(?!&>)[;&|]+")
_KEYWORDS = frozenset({"if", "elif", "while", "until", "!", "then", "else", "do", "{", "(", "time", "sudo"})
_CONDITIONS = frozenset({"if", "elif", "while", "until", "!"})
_TESTS = frozenset({"[", "[[", "test", "!"})
_EXPANSIONS_MAX, _EXPANDED_MAX = 5, 1000


@dataclass(frozen=True, slots=True)
class Again:
    """A program that fails where its work is done already."""

    enough: re.Pattern[str]
    """An option with which it does not fail."""
    fails: str
    remedy: str
    edit: tuple[str, str] = ("", "")


_NEVER = re.compile(r"(?!)")
_FORCE = re.compile(r"-\w*f\w*|--force")
_UNLESS = "run it only where its result is missing"
FAILS_AGAIN = {
    "mkdir": Again(re.compile(r"-\w*p\w*|--parents"), "the folder exists", "write `mkdir -p`", ("mkdir ", "mkdir -p ")),
    "ln": Again(_FORCE, "the link exists", "write `ln -sfn`", ("ln -s ", "ln -sfn ")),
    "rm": Again(_FORCE, "the file is gone", "write `rm -f`", ("rm ", "rm -f ")),
    "mv": Again(_NEVER, "the file is gone", _UNLESS),
    "mkfifo": Again(_NEVER, "the FIFO exists", _UNLESS),
    "patch": Again(_NEVER, "the files are changed", _UNLESS),
    "git clone": Again(_NEVER, "the folder exists", _UNLESS),
    "git apply": Again(_NEVER, "the files are changed", _UNLESS),
    "git am": Again(_NEVER, "the files are changed", _UNLESS),
    "enroot import": Again(_NEVER, "the image exists", _UNLESS),
    "enroot create": Again(
        _FORCE, "the container exists", "write `enroot create --force`", ("create ", "create --force ")
    ),
}


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    words: tuple[str, ...]
    before: str
    """Operator between the previous command of the line and this one; empty: the first."""
    after: str
    previous: tuple[str, ...]
    following: tuple[str, ...]
    is_condition: bool
    in_branch: bool
    """It may not run: it stands in a branch of `if` or `case`."""

    @property
    def operands(self) -> list[str]:
        return [word for word in self.words[1:] if not word.startswith("-")]


@dataclass(frozen=True, slots=True)
class Reading:
    script: Script
    starts: Starts
    commands: Sequence[Command]
    names: Mapping[str, str]
    """Variable → its value, where the script sets it."""
    kept: Sequence[tuple[int, str]]
    """Line and value of the training's options that name where it saves."""
    first_lines: Mapping[str, int]
    """Word → line of the first command that has it."""

    @property
    def last(self) -> int:
        return self.starts[-1][0] if self.starts else 0

    def says_first(self, command: Command, program: str) -> bool:
        """Nothing but the restart count has to stand before this command."""
        return self.script.lines[command.line - 1].lstrip().startswith(f"{program} ") and not command.in_branch

    def is_counted(self, command: Command) -> bool:
        return COUNT in self.script.lines[command.line - 1]


def check(script: Script, starts: Starts, *, with_launcher: bool) -> Iterator[Finding]:
    names = _names(script)
    kept = [(line, path) for line, text in starts for path in _kept_paths(text, names)]
    commands = list(_commands(script))
    first_lines: dict[str, int] = {}
    for command in commands:
        for word in " ".join(command.words).split():
            first_lines.setdefault(word, command.line)
    reading = Reading(script, starts, commands, names, kept, first_lines)
    yield from _removals(reading)
    for command in reading.commands:
        if command.line < reading.last:
            yield from _failure(reading, command)
            yield from _submission(reading, command)
    yield from _starts_over(reading)
    yield from _host_files(reading)
    if not with_launcher:
        yield from _fixed_host(reading)
    started = frozenset(starts)
    for line, text in script.commands:
        if (line, text) in started or re.match(r"exec\s+\d?&?>", text):
            yield from _lost_output(script, line, text)


def _starts_over(reading: Reading) -> Iterator[Finding]:
    for line, path in reading.kept:
        if NEW_EACH_TIME.search(path):
            text = f"{path} has another name at each start, so a restart finds no checkpoint: name it by $SLURM_JOB_ID"
            yield Finding(line, text)
    for line, text in reading.starts:
        for word in words_of(text):
            if word in STARTS_AT_ZERO:
                yield Finding(line, f"with {word} a restart begins at step 0: leave it out")


def _fixed_host(reading: Reading) -> Iterator[Finding]:
    for line, text in reading.script.commands:
        if (found := HOST.search(text)) and line <= reading.last:
            words = f"{found[1]} may not be a node of the restarted job: take the first of $SLURM_JOB_NODELIST"
            yield Finding(line, words)


def _commands(script: Script) -> Iterator[Command]:
    """Simple commands in their order; what a `trap` runs is in the trap's line."""
    depth = 0
    for line, text in script.commands:
        parts = list(_parts(text))
        for at, (before, all_words) in enumerate(parts):
            words, is_condition = all_words, False
            while words and words[0] in _KEYWORDS:
                is_condition |= words[0] in _CONDITIONS
                depth += words[0] == "if"
                words = words[1:]
            if words[:1] == ["case"]:
                depth += 1
            if words[:1] in (["fi"], ["esac"]):
                depth = max(depth - 1, 0)
            after, following = parts[at + 1] if at + 1 < len(parts) else ("", [])
            previous = parts[at - 1][1] if at else []
            one = Command(line, tuple(words), before, after, tuple(previous), tuple(following), is_condition, depth > 0)
            yield one
            if words[:1] == ["trap"] and len(words) > 2:
                for _, inner in _parts(words[1]):
                    yield replace(one, words=tuple(inner), before="trap", after="", previous=())


def _parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Operator before each simple command, and its words."""
    before = ""
    words: list[str] = []
    try:
        for word, is_operator in split(text, OPERATOR):
            if is_operator:
                yield before, words
                before, words = word, []
            else:
                words.append(word)
    except UnfinishedWord:  # the shell complains
        pass
    yield before, words


def _names(script: Script) -> dict[str, str]:
    found = (ASSIGNED.match(text) for _, text in script.commands)
    return {one[1]: one[2].strip("\"'") for one in found if one}


def _expanded(word: str, names: Mapping[str, str]) -> str:
    for _ in range(_EXPANSIONS_MAX):
        new = _NAME.sub(lambda found: names.get(found[1] or found[2], found[0]), word)
        if new == word or len(new) > _EXPANDED_MAX:
            break
        word = new
    return word


def _kept_paths(text: str, names: Mapping[str, str]) -> Iterator[str]:
    """Values of the training's options that name where it saves."""
    words, option = words_of(text), ""
    begins = next((at for at, word in enumerate(words) if PROGRAM.search(word)), 0)
    for word in words[begins:]:
        name, equals, value = word.partition("=")
        if not equals and word.startswith("-"):
            option = word
            continue
        if KEPT.search(name if equals else option):
            yield _expanded(value if equals else word, names)
        option = ""


def _removals(reading: Reading) -> Iterator[Finding]:
    kept = [path for _, path in reading.kept]
    conditions = ""
    for command in reading.commands:
        if command.is_condition:
            conditions = " ".join(command.words)
        program = command.words[0] if command.words else ""
        if program not in ("rm", "mv") or reading.is_counted(command) or _after_success(reading, command):
            continue
        if command.in_branch and COUNT in conditions:
            continue
        targets = command.operands[:-1] if program == "mv" else command.operands
        lost = next((one for one in targets if _is_kept(_expanded(one, reading.names), kept)), None)
        if lost is None:
            continue
        edits: tuple[Edit, ...] = ()
        if reading.says_first(command, program) and command.line < reading.last:
            edits = reading.script.replaced(command.line, f"{program} ", f"{AT_THE_FIRST_START}{program} ")
        text = f"a restarted script {'deletes' if program == 'rm' else 'moves'} {lost}, from which the job would go on"
        is_problem = not (command.in_branch or command.before == "||")
        yield Finding(command.line, f"{text}: write `{AT_THE_FIRST_START}{program} …`", is_problem, edits)


def _after_success(reading: Reading, command: Command) -> bool:
    if command.before == "&&" and command.line in dict(reading.starts):
        return True
    is_below = 0 < reading.last < command.line and command.before != "trap"
    return is_below and bool(reading.script.ends_on_errors)


def _is_kept(path: str, kept: Sequence[str]) -> bool:
    bare = path.rstrip("/*")
    if bare and any(one == bare or one.startswith(f"{bare}/") for one in kept):
        return True
    is_temporary = TEMPORARY.search(path.rstrip("/").rpartition("/")[2]) or path.startswith(LOCAL)
    return bool(RESTORED.search(path)) and not is_temporary


def _failure(reading: Reading, command: Command) -> Iterator[Finding]:
    """A command that fails the second time, where the failure ends the script or what follows is left out."""
    name = next((one for one in (" ".join(command.words[:2]), *command.words[:1]) if one in FAILS_AGAIN), "")
    again = FAILS_AGAIN.get(name)
    if again is None or any(again.enough.fullmatch(word) for word in command.words) or _is_guarded(command):
        return
    exits = command.after == "||" and command.following[:1] in (("exit",), ("return",))
    ends = 0 < reading.script.ends_on_errors < command.line and command.after in ("", ";")
    if not (exits or ends or command.after == "&&"):
        return
    made = set(command.operands[:-1] if name == "mv" else command.operands)
    # An earlier line makes or removes it at each start.
    if any(reading.first_lines.get(word, command.line) < command.line for word in made):
        return
    if any(NEW_EACH_TIME.search(_expanded(word, reading.names)) for word in command.words):
        return
    then = "what stands behind it does not run" if command.after == "&&" else "the script ends"
    text = f"at a restart {again.fails}, so `{name}` fails and {then}: {again.remedy}"
    edits = reading.script.replaced(command.line, *again.edit) if again.edit[0] and not exits else ()
    yield Finding(command.line, text, edits=edits)


def _is_guarded(command: Command) -> bool:
    if command.in_branch or command.is_condition or command.before == "||":
        return True
    return command.before == "&&" and bool(command.previous) and command.previous[0] in _TESTS


def _submission(reading: Reading, command: Command) -> Iterator[Finding]:
    if command.words[:1] == ("sbatch",) and not command.in_branch and not reading.is_counted(command):
        edits: tuple[Edit, ...] = ()
        if reading.says_first(command, "sbatch"):
            edits = reading.script.replaced(command.line, "sbatch ", f"{AT_THE_FIRST_START}sbatch ")
        text = f"each start submits this job again: write `{AT_THE_FIRST_START}sbatch …`"
        yield Finding(command.line, text, is_problem=False, edits=edits)


def _host_files(reading: Reading) -> Iterator[Finding]:
    """Files that grow at each start and are read by the training, such as a list of hosts."""
    names = reading.names
    read = {_expanded(word.rpartition("=")[2], names) for _, text in reading.starts for word in words_of(text)}
    emptied: set[str] = set()
    for line, text in reading.script.commands:
        words = [_expanded(word, names) for word in words_of(text)]
        if "rm" in words[:1] or re.search(r"(?<!>)>(?!>)", QUOTED.sub("", text)):
            emptied |= set(words)
        for path in (_expanded(one, names) for one in re.findall(r">>\s*[\"']?([^\s;|&\"']+)", text)):
            if path in read - emptied and (line, text) not in reading.starts:
                yield Finding(line, f"each start adds to {path}, which the training reads: empty it first")


def _lost_output(script: Script, line: int, text: str) -> Iterator[Finding]:
    bare = QUOTED.sub(lambda found: "_" * len(found[0]) if " " in found[0] else found[0], text)
    for found in WRITES.finditer(bare):
        if not found[2].startswith("/dev/") and not NEW_EACH_TIME.search(found[2]):
            new = text[found.start() : found.end()].replace(found[1], f"{found[1]}>", 1)
            edits = script.replaced(line, found[0], new) if found[0] in text else ()
            yield _overwrites(line, found[2], f"write `{found[1]}>`", edits)
    words = words_of(text.replace("(", " ").replace(")", " "))
    if "tee" in words:
        options = words[words.index("tee") + 1 :]
        name = next((word for word in options if not word.startswith("-")), "")
        if name and not NEW_EACH_TIME.search(name) and not {"-a", "--append", "-ai", "-ia"}.intersection(options):
            yield _overwrites(line, name, "write `tee -a`", script.replaced(line, "tee ", "tee -a "))
    words = words_of(text)
    if "srun" in words and "append" not in text:
        until = next(
            (at for at, word in enumerate(words) if words[0] == "srun" and word in ("python", "--")), len(words)
        )
        for at, word in enumerate(words[:until]):
            short = word == "-o" and words[at + 1 : at + 2]
            name = word.removeprefix("--output=") if word.startswith("--output=") else (short or [""])[0]
            if name and name not in ("none", "/dev/null") and not NEW_EACH_TIME.search(name):
                edits = script.replaced(line, "srun ", "srun --open-mode=append ")
                yield _overwrites(line, name, "add --open-mode=append to srun", edits)


def _overwrites(line: int, name: str, remedy: str, edits: tuple[Edit, ...]) -> Finding:
    text = f"each start overwrites {name}, and the output of earlier ones is lost: {remedy}"
    return Finding(line, text, is_problem=False, edits=edits)
