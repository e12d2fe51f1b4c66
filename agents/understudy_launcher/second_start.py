"""What a batch script does differently, or fails at, when Slurm starts its job a second time.

Slurm runs the script of a requeued job from its first line, on other nodes, among the files of the first attempt.
`starts` are the commands that start the training. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from itertools import pairwise

from understudy_launcher.batch_script import Edit, Finding, Script, UnfinishedWord, commands_of, split, words_of

Starts = Sequence[tuple[int, str]]

COUNT = "SLURM_RESTART_COUNT"
"""Slurm sets it from a job's second start on."""
AT_THE_FIRST_START = f'[ "${{{COUNT}:-0}}" -gt 0 ] || '
RESTORED = re.compile(r"ckpt|checkpoint|resume|restore|latest", re.IGNORECASE)
KEPT = re.compile(
    rf"{RESTORED.pattern}|save|output|out_dir|(?:exp|work|root|run|project)[_.-]?dir|run\.dir", re.IGNORECASE
)
PLACE = re.compile(r"dir|path|folder|^-*(?:save|output|out)$", re.IGNORECASE)
"""Options among `KEPT` whose value is where the training saves, and not how often or whether."""
TEMPORARY = re.compile(r"te?mp|lock|part(?:ial)?|\.log|\.pid|cache|^logs?$|^build$", re.IGNORECASE)
LOCAL = ("/tmp", "/dev/shm", "$TMPDIR", "${TMPDIR}", "$SLURM_TMPDIR", "${SLURM_TMPDIR}")  # noqa: S108 - read, not used
NEW_EACH_TIME = re.compile(rf"\$\(date|`date|\$\{{?S?RANDOM|\$\$|mktemp|uuidgen|EPOCHSECONDS|{COUNT}")
STARTS_AT_ZERO = ("--overwrite_output_dir", "--overwrite-output-dir", "--no-resume")
NANOGPTS = re.compile(r"config/\w+\.py$|--always_save_checkpoint=")
NANOGPT = (
    "nanoGPT begins at step 0 at each start, unless it gets --init_from=resume: start it with `understudy run "
    "--resume-args=--init_from=resume --resume-if OUT/ckpt.pt -- …`. `understudy help launcher` shows it"
)
HOST = re.compile(
    r"(?:MASTER_ADDR=|--(?:master[_-]addr|main_process_ip|rdzv[_-]endpoint)[= ])"
    r"[\"']?(?!localhost|127\.)([A-Za-z0-9][\w.-]*)"
)
WRITES = re.compile(r"(?<![<>=&\d-])((?:(?<=\s)\d|&)?>)(?![>&(|])\s*([^\s;|&<>]+)")
PROGRAM = re.compile(r"\.py$|(?:^|/)(?:python|torchrun|accelerate|deepspeed)")
"""Options before it are those of srun or `understudy run`."""
ASSIGNED = re.compile(r"(?:export\s+|readonly\s+|local\s+)?(\w+)=(.*)", re.DOTALL)
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")

SHELLS = frozenset({"bash", "sh", "dash", "ksh", "zsh"})
CODE_OPTION = re.compile(r"-\w*c")
WRAPPERS = frozenset(
    {
        *(
            "srun",
            "mpirun",
            "mpiexec",
            "ssh",
            "env",
            "command",
            "builtin",
            "exec",
            "nohup",
            "timeout",
            "nice",
            "ionice",
        ),
        *("xargs", "stdbuf", "flock", "setsid", "apptainer", "singularity", "clush", "pdsh"),
    }
)
"""Programs that run the command among their arguments."""
CODE_DEPTH_MAX = 4
BRACES = re.compile(r"(?<!\$)\{[^{}]*\}")
OWN_JOB = re.compile(r"\$\{?(?:SLURM_JOB_?ID|SLURM_ARRAY_JOB_ID)\b[^.]*|--me")
AT_A_REQUEUE = frozenset({"TERM", "SIGTERM", "15", "EXIT", "0"})
"""Signals of a `trap` that runs when Slurm ends the job for a requeue."""
REMOVED_TREE = re.compile(r"rmtree\(\s*[\"']?([^\"'(),]+)")
EXISTS = re.compile(r"(?:\[\[?|test) (?:! )?-[defs] \S+(?: \]\]?)?")
"""The condition is true at each start but the first."""

_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-?=]([^{}]*))?\})")
OPERATOR = re.compile(r"(?!&>)[;&|]+")
_KEYWORDS = frozenset({"if", "elif", "while", "until", "!", "then", "else", "do", "{", "(", "time", "sudo"})
_CONDITIONS = frozenset({"if", "elif", "while", "until", "!"})
_TESTS = frozenset({"[", "[[", "test", "!"})
_EXPANSIONS_MAX, _EXPANDED_MAX, _PARTS_MAX = 5, 1000, 30


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
    is_code: bool = False
    """It stands in text that another shell runs, as `bash -c` does; a failure in it may not end the script."""

    @property
    def operands(self) -> list[str]:
        return [word for word in self.words[1:] if not word.startswith("-")]


@dataclass(frozen=True, slots=True)
class Kept:
    """An option of the training that is about what it saves."""

    line: int
    value: str
    is_place: bool


class Use(Enum):
    """What is in a folder that a script deletes."""

    CHECKPOINTS = "the job would go on from it"
    UNCLEAR = "unclear"
    OTHER = "nothing that the job goes on from"


@dataclass(frozen=True, slots=True)
class Removal:
    does: str
    """Such as `deletes`."""
    paths: Sequence[str]
    takes_folders: bool


@dataclass(frozen=True, slots=True)
class Reading:
    script: Script
    starts: Starts
    commands: Sequence[Command]
    names: Mapping[str, str]
    """Variable → its value, where the script sets it."""
    kept: Sequence[Kept]
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
    commands = list(_all_commands(script))
    names = _names(script, commands)
    inner = [(one.line, " ".join(one.words)) for one in commands if one.is_code]
    kept = [one for line, text in (*starts, *inner) for one in _kept(line, text, names)]
    first_lines: dict[str, int] = {}
    for command in commands:
        for word in " ".join(command.words).split():
            first_lines.setdefault(word, command.line)
    reading = Reading(script, starts, commands, names, kept, first_lines)
    yield from _removals(reading)
    yield from _cancellations(reading)
    yield from _unread_scripts(reading)
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
    for line, path in dict.fromkeys((one.line, one.value) for one in reading.kept):
        if NEW_EACH_TIME.search(path):
            text = f"{path} has another name at each start, so a restart finds no checkpoint: name it by $SLURM_JOB_ID"
            yield Finding(line, text)
    for line, text in reading.starts:
        for word in words_of(text):
            if word in STARTS_AT_ZERO:
                yield Finding(line, f"with {word} a restart begins at step 0: leave it out")
        if _is_nanogpt(text, reading.names):
            yield Finding(line, NANOGPT)


def _is_nanogpt(text: str, names: Mapping[str, str]) -> bool:
    """The training begins at step 0 at each start, as nanoGPT (train.py, configurator.py) does without
    `--init_from=resume`.
    """
    words = _flat(words_of(text), names)
    at = next((at for at, word in enumerate(words) if posixpath.basename(word) == "train.py"), len(words))
    arguments = words[at + 1 :]
    begins = [word for word in arguments if word.startswith("--init_from=")]
    if "--resume-args" in text or any("resume" in word or "$" in word for word in begins):
        return False
    takes_nanogpts = all("=" in word for word in arguments if word.startswith("--"))
    return bool(begins) or (takes_nanogpts and any(NANOGPTS.match(word) for word in arguments))


def _fixed_host(reading: Reading) -> Iterator[Finding]:
    for line, text in reading.script.commands:
        if (found := HOST.search(text)) and line <= reading.last:
            words = f"{found[1]} may not be a node of the restarted job: take the first of $SLURM_JOB_NODELIST"
            yield Finding(line, words)


def _all_commands(script: Script) -> Iterator[Command]:
    """Simple commands in their order, with those of here-documents that are scripts."""
    yield from _commands(script.commands)
    for above, lines in script.documents.items():
        if _is_script(script, above):
            yield from _commands(commands_of(lines, above), is_code=True)


def _is_script(script: Script, line: int) -> bool:
    """A shell reads the here-document, or a file is made of it that a command names."""
    text = script.lines[line - 1]
    words = words_of(text)
    if any(posixpath.basename(word) in {*SHELLS, "ssh"} for word in words):
        return True
    made = {word for word in words if word.endswith(".sh")}
    return bool(made) and any(made.intersection(words_of(one)) for _, one in script.after(line))


def _commands(
    lines: Iterable[tuple[int, str]], *, is_code: bool = False, in_branch: bool = False, level: int = 0
) -> Iterator[Command]:
    """Simple commands in their order; what a `trap` or `bash -c` runs is in its line."""
    depth = int(in_branch)
    for line, text in lines:
        parts = list(_parts(text))
        for at, (before, all_words) in enumerate(parts):
            words, is_condition = _without_head(all_words), False
            while words and words[0] in _KEYWORDS:
                is_condition |= words[0] in _CONDITIONS
                depth += words[0] == "if"
                words = _without_head(words[1:])
            if words[:1] == ["case"]:
                depth += 1
            if words[:1] in (["fi"], ["esac"]):
                depth = max(depth - 1, 0)
            after, following = parts[at + 1] if at + 1 < len(parts) else ("", [])
            previous = parts[at - 1][1] if at else []
            one = Command(
                line, tuple(words), before, after, tuple(previous), tuple(following), is_condition, depth > 0, is_code
            )
            yield one
            if level < CODE_DEPTH_MAX and (code := _code_in(words)):
                inner = _commands([(line, code)], is_code=True, in_branch=depth > 0, level=level + 1)
                if words[0] == "trap":
                    yield from (replace(each, before="trap", after="", previous=()) for each in inner)
                else:
                    yield from inner


def _without_head(words: Sequence[str]) -> list[str]:
    """The command behind the name of a function, the pattern of a `case` or a parenthesis."""
    rest = list(words)
    while rest:
        if rest[0] == "function":
            del rest[:2]
        elif re.fullmatch(r"[^()$`=]*\)|[\w-]+\(\)", rest[0]):
            del rest[0]
        elif re.match(r"\([^()]", rest[0]):
            rest[0] = rest[0].lstrip("(")
        else:
            break
    return rest


def _code_in(words: Sequence[str]) -> str:
    """Text of the command that a shell runs; empty: none."""
    if not words:
        return ""
    if words[0] == "trap" and len(words) > 2:
        return words[1]
    if words[0] == "eval":
        return " ".join(words[1:])
    if words[0] == "ssh" and len(words) > 2:
        return words[-1]
    for at, word in enumerate(words):
        if posixpath.basename(word) in {*SHELLS, "su"}:
            rest = words[at + 1 :]
            return next(
                (code for option, code in pairwise(rest) if CODE_OPTION.fullmatch(option) or option == "<<<"), ""
            )
    return ""


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


def _names(script: Script, commands: Sequence[Command]) -> dict[str, str]:
    """Variable → its value, which may have blanks, as `$(date +%s)` has."""
    found = {one[1]: one[2] for words in commands for one in map(ASSIGNED.fullmatch, words.words) if one}
    whole = (ASSIGNED.match(text) for _, text in script.commands if ";" not in text and ("$(" in text or "`" in text))
    return found | {one[1]: one[2].strip("\"'") for one in whole if one}


def _expanded(word: str, names: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        default = found[3] if found[3] and "?" not in found[0] else f"${name}"
        return names.get(name, default)

    for _ in range(_EXPANSIONS_MAX):
        new = _NAME.sub(value, word)
        if new == word or len(new) > _EXPANDED_MAX:
            break
        word = new
    return word


def _kept(line: int, text: str, names: Mapping[str, str]) -> Iterator[Kept]:
    words, option = _flat(words_of(text), names), ""
    begins = next((at for at, word in enumerate(words) if PROGRAM.search(word)), 0)
    for word in words[begins:]:
        name, equals, value = word.partition("=")
        if not equals and word.startswith("-"):
            option = word
            continue
        used = name if equals else option
        if KEPT.search(used):
            yield Kept(line, _expanded(value if equals else word, names), PLACE.search(used) is not None)
        option = ""


def _flat(words: Iterable[str], names: Mapping[str, str], level: int = 0) -> list[str]:
    """The words, with those of commands that are a word themselves, as in `bash -c` or a variable."""
    found = []
    for word in words:
        new = _expanded(word, names) if word.startswith("$") else word
        inner = words_of(new) if level < CODE_DEPTH_MAX and " " in new.strip() else []
        found += _flat(inner, names, level + 1) if len(inner) > 1 else [word]
    return found


def _removals(reading: Reading) -> Iterator[Finding]:
    conditions = ""
    moves = (one.line for one in reading.commands if one.words[:1] in (("cd",), ("pushd",), ("popd",)))
    newest_move = max((line for line in moves if line < reading.last), default=0)
    for command in reading.commands:
        if command.is_condition:
            conditions = " ".join(command.words)
        removal = _removal(command)
        if removal is None or _is_counted(reading, command) or _after_success(reading, command):
            continue
        if command.in_branch and COUNT in conditions:
            continue
        is_moved = command.line <= newest_move
        uses = {path: _use(_expanded(path, reading.names), reading.kept, is_moved=is_moved) for path in removal.paths}
        lost = next((path for path, use in uses.items() if use is Use.CHECKPOINTS), None)
        unclear = next((path for path, use in uses.items() if use is Use.UNCLEAR), None)
        if lost is None and (unclear is None or not removal.takes_folders):
            continue
        program = command.words[0]
        edits: tuple[Edit, ...] = ()
        if (
            lost is not None
            and not command.is_code
            and reading.says_first(command, program)
            and command.line < reading.last
        ):
            edits = reading.script.replaced(command.line, f"{program} ", f"{AT_THE_FIRST_START}{program} ")
        text = f"a restarted script {removal.does} {lost}, from which the job would go on"
        if lost is None:
            text = f"the script {removal.does} {unclear} at each start, and does not show where the training saves"
        is_problem = _runs_again(command, conditions)
        yield Finding(command.line, f"{text}: write `{AT_THE_FIRST_START}{program} …`", is_problem, edits)


def _cancellations(reading: Reading) -> Iterator[Finding]:
    """A requeue sends SIGTERM to the batch script as well (slurmd's req.c, _rpc_terminate_job)."""
    traps = [command.words[2:] for command in reading.commands if command.words[:1] == ("trap",)]
    at_a_requeue = not traps or any(map(AT_A_REQUEUE.intersection, traps))
    signals: Sequence[str] = ()
    for command in reading.commands:
        if command.words[:1] == ("trap",):
            signals = command.words[2:]
        if not _cancels_itself(command) or _after_success(reading, command):
            continue
        if command.before == "trap" and AT_A_REQUEUE.intersection(signals):
            yield Finding(
                command.line,
                f"a requeue sends SIGTERM, and the trap for {' '.join(signals)} then cancels the job, which Slurm does "
                "not start again: leave scancel out",
            )
        elif command.before != "trap" and (at_a_requeue or command.before == "||"):
            yield Finding(
                command.line, "Slurm does not start a cancelled job again: end the script with `exit 1` in its place"
            )


def _cancels_itself(command: Command) -> bool:
    """`scancel` of the job as a whole, and not of a step or with a signal."""
    words = command.words
    signals = any(re.match(r"-s|--signal", word) for word in words)
    return words[:1] == ("scancel",) and not signals and any(OWN_JOB.fullmatch(word) for word in words)


def _unread_scripts(reading: Reading) -> Iterator[Finding]:
    """Scripts that this one runs, but for those that a here-document of it holds."""
    known = {word for line in reading.script.documents for word in words_of(reading.script.lines[line - 1])}
    for command in reading.commands:
        program = posixpath.basename(command.words[0]) if command.words else ""
        words = command.words if program in SHELLS | WRAPPERS else command.words[:1]
        name = next((word for word in words if word.endswith(".sh") and word not in known), "")
        if name:
            known.add(name)
            text = f"{name} is not read: what it deletes or overwrites at each start is for you to check"
            yield Finding(command.line, text, is_problem=False)


def _is_counted(reading: Reading, command: Command) -> bool:
    return reading.is_counted(command) or COUNT in " ".join(command.previous)


def _runs_again(command: Command, conditions: str) -> bool:
    """False where it depends on a condition that is not known."""
    if command.before == "||":
        return EXISTS.fullmatch(" ".join(command.previous)) is not None
    return not command.in_branch or EXISTS.fullmatch(conditions) is not None


def _removal(command: Command) -> Removal | None:
    words = list(command.words)
    while words and ASSIGNED.fullmatch(words[0]):
        del words[0]
    if words and words[0] in WRAPPERS:
        words = words[next((at for at, word in enumerate(words) if _removes(word)), len(words)) :]
    program = posixpath.basename(words[0].lstrip("\\")) if words else ""
    paths = [word.rstrip(")") if "(" not in word else word for word in words[1:] if not word.startswith("-")]
    paths = [path for path in paths if path and not re.match(r"\d?[<>]", path)]
    match program:
        case "rm":
            takes_folders = any(re.fullmatch(r"-\w*[rR]\w*|--recursive", word) for word in words)
            return Removal("deletes", paths or list(command.previous[1:2]), takes_folders)
        case "mv":
            return Removal("moves", paths[:-1], takes_folders=False)
        case "find":
            return _found(words)
        case "rsync" if any(word.startswith("--del") for word in words):
            return Removal("deletes files in", paths[-1:], takes_folders=False)
        case "git":
            is_tried = any(re.fullmatch(r"-\w*n\w*|--dry-run", word) for word in words[2:])
            cleans = words[1:2] == ["clean"] and not is_tried
            return Removal("deletes untracked files in", paths[1:] or ["."], takes_folders=True) if cleans else None
    trees = [found[1] for word in words if (found := REMOVED_TREE.search(word))]
    return Removal("deletes", trees, takes_folders=True) if trees else None


def _removes(word: str) -> bool:
    return posixpath.basename(word) in ("rm", "mv", "find", "git") or REMOVED_TREE.search(word) is not None


def _found(words: Sequence[str]) -> Removal | None:
    """What `find` deletes; None where it takes temporary files alone."""
    deletes = "-delete" in words or ("rm" in words and not {"-exec", "-execdir"}.isdisjoint(words))
    until = next((at for at, word in enumerate(words) if at and word.startswith(("-", "(", "!"))), len(words))
    patterns = [word for option, word in pairwise(words) if option in ("-name", "-iname")]
    if not deletes or (patterns and all(TEMPORARY.search(word) for word in patterns)):
        return None
    return Removal("deletes files in", words[1:until] or ["."], takes_folders=True)


def _after_success(reading: Reading, command: Command) -> bool:
    if command.before == "&&" and command.line in dict(reading.starts):
        return True
    is_below = 0 < reading.last < command.line and command.before != "trap"
    return is_below and bool(reading.script.ends_on_errors)


def _use(path: str, kept: Sequence[Kept], *, is_moved: bool) -> Use:
    """`is_moved`: the training starts in another folder than the one in which the path is deleted."""
    bare = _normal(path)
    if any(_covers(bare, _normal(one.value)) for one in kept if one.value):
        return Use.CHECKPOINTS
    name = posixpath.basename(path.rstrip("/"))
    if TEMPORARY.search(name) or any(bare == one or bare.startswith(f"{one}/") for one in LOCAL):
        return Use.OTHER
    if RESTORED.search(path):
        return Use.CHECKPOINTS
    places = [_normal(one.value) for one in kept if one.is_place]
    is_elsewhere = all(_root(one) == _root(bare) and not one.startswith(f"{_root(one)}$") for one in places)
    is_inside = any(bare.startswith(f"{one}/") for one in places)
    is_uncertain = is_inside or (is_moved and not _root(bare))
    return Use.OTHER if places and is_elsewhere and not is_uncertain else Use.UNCLEAR


def _covers(deleted: str, kept: str) -> bool:
    if deleted == kept or kept.startswith(f"{deleted}/") or (deleted == "." and not _root(kept)):
        return True
    parts = kept.split("/")[:_PARTS_MAX]
    is_pattern = "*" in deleted or "?" in deleted
    return is_pattern and any(fnmatchcase("/".join(parts[:end]), deleted) for end in range(1, len(parts) + 1))


def _normal(path: str) -> str:
    """The folder, where the path names all that is in it."""
    bare = re.sub(r"(?:^|/)\.?\*/?$", "", BRACES.sub("*", path))
    return posixpath.normpath(bare) if bare or not path.startswith("/") else "/"


def _root(path: str) -> str:
    """What a path begins at: `/`, a variable that is not known, or (empty) the working directory."""
    return "/" if path.startswith("/") else path.partition("/")[0] if path.startswith(("$", "~", "..", "`")) else ""


def _failure(reading: Reading, command: Command) -> Iterator[Finding]:
    """A command that fails the second time, where the failure ends the script or what follows is left out."""
    name = next((one for one in (" ".join(command.words[:2]), *command.words[:1]) if one in FAILS_AGAIN), "")
    again = FAILS_AGAIN.get(name)
    if (
        again is None
        or command.is_code
        or any(again.enough.fullmatch(word) for word in command.words)
        or _is_guarded(command)
    ):
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
