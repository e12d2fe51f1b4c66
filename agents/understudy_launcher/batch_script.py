"""A batch script as sbatch reads it (src/sbatch/opt.c and sbatch.c, the same from 22.05 to 26.05).

Belongs here: options, commands, and the lines that sbatch ignores. Must not: what they mean (`check_job`).
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

_SHORT = {"N": "nodes", "k": "no-kill", "w": "nodelist", "F": "nodefile", "a": "array", "t": "time", "n": "ntasks"}
_FLAGS = frozenset({"no-kill", "requeue", "no-requeue", "exclusive", "overcommit", "hold", "parsable", "wait"})
_DIRECTIVE = re.compile(r"#(?:SBATCH|SLURM)")
_DOCUMENT = re.compile(r"(?<!<)<<-?\s*[\"'\\]?([A-Za-z_][\w.+-]*)")
_ARITHMETIC = re.compile(r"\(\(.{,200}?\)\)")
LINES_OF_A_COMMAND_MAX = 300
"""A quotation mark without a second one would make one command of all that follows."""
_NO_OPERATOR = re.compile(r"(?!)")
_BLANKS = " \t\r\n"
_PIECE = re.compile(
    rf"([^{_BLANKS}'\"\\;&|<>]+|[<>]&?|&>|[;&|])|'([^']*)'|\"([^\"\\]*(?:\\.[^\"\\]*)*)\"|\\(.)", re.DOTALL
)
"""Part of a word: plain, in single or double quotes, or a character behind a backslash."""
_ESCAPED_IN_QUOTES = re.compile(r"\\([\"\\])")
_HETEROGENEOUS = re.compile(r"\s*(hetjob|packjob)(?!\S)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Edit:
    line: int
    """Line of the script; 0: below its last line with #SBATCH that sbatch reads, or else below the first."""
    text: str
    """Takes the line's place; empty: the line goes."""


@dataclass(frozen=True, slots=True)
class Finding:
    line: int
    """Line of the script; 0: none."""
    text: str
    """What it leads to, and what to do."""
    is_problem: bool = True
    """False: a note."""
    edits: tuple[Edit, ...] = ()
    """Mend it; empty where a person has to choose."""


@dataclass(frozen=True)
class Script:
    """What sbatch reads in a batch script."""

    options: dict[str, tuple[int, str]]
    """Name → line and value."""
    unread: tuple[Finding, ...]
    """Lines with #SBATCH that sbatch ignores or refuses."""
    heterogeneous: int
    """Line of a component's separator; 0: there is none."""
    commands: tuple[tuple[int, str], ...]
    """Number and text of each command's first line. One that goes on below, as after a backslash, a pipe or within
    quotes, is one command.
    """
    ends_on_errors: int
    """Line of `set -e`, or of `#!/bin/bash -e`; 0: there is none."""
    lines: tuple[str, ...]
    """The whole file, its first line at 0."""
    ends: Mapping[int, int]
    """First line of each command → its last one."""
    documents: Mapping[int, Sequence[str]]
    """Line with a here-document's word → the document's lines, which stand below it."""

    def after(self, line: int, until: int = sys.maxsize) -> Sequence[tuple[int, str]]:
        """The commands below a line, and above the line `until`."""
        return self.commands[bisect_left(self.commands, (line + 1, "")) : bisect_left(self.commands, (until, ""))]

    @cached_property
    def sets_pipefail(self) -> bool:
        return any("pipefail" in text for _, text in self.commands)

    @cached_property
    def in_background(self) -> Sequence[str]:
        return [text for _, text in self.commands if is_in_background(text)]

    @cached_property
    def has_trap(self) -> bool:
        return any(text.startswith("trap") for _, text in self.commands)

    def replaced(self, line: int, old: str, new: str) -> tuple[Edit, ...]:
        """The command of that line with `new` in the place of `old`; none where `old` does not stand there once."""
        found = [number for number in range(line, self.ends[line] + 1) if old in self.lines[number - 1]]
        if len(found) != 1 or self.lines[found[0] - 1].count(old) != 1:
            return ()
        return (Edit(found[0], self.lines[found[0] - 1].replace(old, new)),)

    def appended(self, line: int, text: str) -> tuple[Edit, ...]:
        """The command of that line with a text behind it; none where its end is uncertain."""
        last = self.ends[line]
        end = self.lines[last - 1].rstrip()
        return () if re.search(r"(?<!\S)#", end) else (Edit(last, end + text),)


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The script after these edits, each of another line."""
    lines = text.split("\n")
    new = {edit.line: edit.text for edit in edits}
    if below := new.pop(0, ""):
        read = [number for number, line in enumerate(_directives(lines), start=1) if _DIRECTIVE.match(line)]
        at = max(read, default=1)
        new[at] = f"{new.get(at, lines[at - 1])}\n{below}"
    return "\n".join(
        new.get(number, line) for number, line in enumerate(lines, start=1) if new.get(number, line) or not line
    )


def _directives(lines: Sequence[str]) -> Iterator[str]:
    """The lines above the first command."""
    for line in lines:
        if (stripped := line.strip()) and not stripped.startswith("#"):
            return
        yield line


def read_script(text: str) -> Script:
    lines = tuple(text.split("\n"))
    commands = _commands(lines)
    first_command = commands[0][0] if commands else len(lines) + 1
    options: dict[str, tuple[int, str]] = {}
    unread: list[Finding] = []
    heterogeneous = 0
    within = {number for first, last, _ in commands for number in range(first, last + 1)}
    for number, line in _outside_documents(lines):
        stripped = line.strip()
        directive = _DIRECTIVE.match(line)
        if not _DIRECTIVE.match(stripped) or number in within:
            continue
        if directive is None:
            if number < first_command:
                words = "sbatch ignores this #SBATCH line: remove the blanks before it"
                unread.append(Finding(number, words, edits=(Edit(number, stripped),)))
            continue
        rest = line[directive.end() :]
        if number > first_command:
            words = "sbatch ignores this #SBATCH line, as a command stands before it: move it up"
            # One that is set above would get another value.
            is_new = not options.keys() & {name for name, _ in options_of(words_of(rest))}
            edits = (Edit(0, stripped), Edit(number, "")) if is_new else ()
            unread.append(Finding(number, words, edits=edits))
        elif _HETEROGENEOUS.match(rest):
            heterogeneous = heterogeneous or number
        elif has_open_quote(rest):
            unread.append(Finding(number, "sbatch refuses this line: a quotation mark has no second one"))
        else:
            options |= {name: (number, value) for name, value in options_of(words_of(rest))}
    return Script(
        options,
        tuple(unread),
        heterogeneous,
        tuple((first, text) for first, _, text in commands),
        _errors_end_it(lines),
        lines,
        {first: last for first, last, _ in commands},
        _documents(lines),
    )


def commands_of(lines: Sequence[str], above: int) -> list[tuple[int, str]]:
    """Line and text of each command in a part of a script, whose first line stands below the line `above`."""
    return [(above + first, text) for first, _, text in _commands(lines)]


def _documents(lines: Sequence[str]) -> dict[int, Sequence[str]]:
    outside = [number for number, _ in _outside_documents(lines)]
    return {
        number: lines[number : following - 1]
        for number, following in pairwise([*outside, len(lines) + 1])
        if following > number + 1
    }


def _commands(lines: Sequence[str]) -> list[tuple[int, int, str]]:
    """First and last line of each command, and its text."""
    found: list[tuple[int, int, str]] = []
    goes_on = False
    for number, line in _outside_documents(lines):
        stripped = line.strip()
        if goes_on:
            first, _, begun = found[-1]
            found[-1] = first, number, f"{begun.removesuffix(chr(92))}\n{stripped}"
        elif stripped and not stripped.startswith("#"):
            found.append((number, number, stripped))
        else:
            continue
        first, _, text = found[-1]
        goes_on = number - first < LINES_OF_A_COMMAND_MAX and (
            stripped.endswith(("\\", "|", "&&", "||")) or has_open_quote(text)
        )
    return found


def _errors_end_it(lines: Sequence[str]) -> int:
    found = 0
    for number, line in _outside_documents(lines):
        stripped = line.strip()
        if _ends_on_errors(number, stripped):
            found = found or number
        elif re.match(r"set \+([a-zA-Z]*e|o errexit)", stripped):
            found = 0
    return found


def _outside_documents(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without what stands in here-documents."""
    last_word = ""
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if last_word:
            last_word = "" if stripped == last_word else last_word
            continue
        if "<<" in line and not stripped.startswith("#") and (begins := _DOCUMENT.search(_ARITHMETIC.sub("", line))):
            last_word = begins[1]
        yield number, line


def _ends_on_errors(number: int, line: str) -> bool:
    words = line.split()
    if number == 1 and line.startswith("#!"):
        return any(re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", word) for word in words[1:])
    short = any(re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*;?", word) for word in words[1:])
    return words[:1] == ["set"] and (short or "errexit" in line)


def is_in_background(text: str) -> bool:
    return text.rstrip().endswith("&") and not text.rstrip().endswith("&&")


def words_of(text: str) -> list[str]:
    try:
        return list(_words(text))
    except UnfinishedWord:  # the shell complains
        return text.split()


def has_open_quote(text: str) -> bool:
    try:
        _words(text)
    except UnfinishedWord as error:
        return error.in_quotes
    return False


class UnfinishedWord(ValueError):
    """A text that ends within quotes, or with a backslash."""

    def __init__(self, *, in_quotes: bool) -> None:
        self.in_quotes = in_quotes
        super().__init__("no closing quotation mark" if in_quotes else "nothing stands behind the backslash")


@lru_cache(maxsize=4096)  # each rule asks for the words of each command
def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word, _ in split(text))


def split(text: str, operators: re.Pattern[str] = _NO_OPERATOR) -> Iterator[tuple[str, bool]]:
    """Words as the shell splits them, and whether each is an operator; in a time that grows with the text's length, as
    that of `shlex` does not. Raises UnfinishedWord.
    """
    at, begun = 0, False
    word: list[str] = []
    while at < len(text):
        if (operator := operators.match(text, at)) or text[at] in _BLANKS:
            if begun:
                yield "".join(word), False
                word, begun = [], False
            if operator:
                yield operator[0], True
            at = operator.end() if operator else at + 1
            continue
        if text[at] == "#" and not begun:
            at = (text.find("\n", at) + 1) or len(text)
            continue
        piece = _PIECE.match(text, at)
        if piece is None:
            raise UnfinishedWord(in_quotes=text[at] != "\\")
        plain, single, double, escaped = piece.groups()
        word.append(plain or single or escaped or _ESCAPED_IN_QUOTES.sub(r"\1", double or ""))
        at, begun = piece.end(), True
    if begun:
        yield "".join(word), False


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each; the value of a flag is empty."""
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = _SHORT.get(word[1], word[1]), word[2:], word[2:].removeprefix("=")
        else:
            if word == ":":  # the next component of a heterogeneous job
                yield word, ""
            continue
        if not equals and name not in _FLAGS and rest and not rest[0].startswith("-"):
            value = rest.popleft()
        yield name, value
