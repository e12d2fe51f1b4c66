"""Everything that a person reads is in plain words: tests/plain_words.toml lists those that are not used."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("agents", "controlplane", "migrations", "deploy", "docs", "tests", ".ci")
SUFFIXES = {"", ".py", ".md", ".toml", ".sh", ".c", ".mako", ".svg"}


@dataclass(frozen=True)
class Rule:
    pattern: re.Pattern[str]
    instead: str
    allowed: re.Pattern[str] | None = None

    def found_in(self, text: str) -> Iterator[re.Match[str]]:
        allowed = [match.span() for match in self.allowed.finditer(text)] if self.allowed else []
        for match in self.pattern.finditer(text):
            if not any(start <= match.start() and match.end() <= end for start, end in allowed):
                yield match


@dataclass(frozen=True)
class WordList:
    words: list[Rule]
    names: list[Rule]
    exempt: tuple[str, ...]
    any_word: re.Pattern[str]
    any_name: re.Pattern[str]
    """Find in one pass whether a text has any of them: most have none."""

    def applies_to(self, path: str) -> bool:
        return not path.startswith(self.exempt)

    def found(self, path: str, text: str) -> list[str]:
        """A line for each use: where, what, and what to write instead."""
        lines = []
        for rules, any_of_them, normalised in (
            (self.words, self.any_word, in_words),
            (self.names, self.any_name, str),
        ):
            if any(True for rule in rules for _ in rule.found_in(normalised(path))):
                lines.append(f"{path}: the file's name")
            content = normalised(text)
            if not any_of_them.search(content):
                continue
            for rule in rules:
                for match in rule.found_in(content):
                    line = content.count("\n", 0, match.start()) + 1
                    lines.append(f"{path}:{line}: {' '.join(match[0].split())!r}; instead: {rule.instead}")
        return lines


def in_words(text: str) -> str:
    """Lower case, with the parts of a name apart: `StepWindows` becomes `step_windows`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text).lower()


def whole_words(words: str) -> re.Pattern[str]:
    """Parts of a name count. A space may be an underscore or the end of a line, within a comment too."""
    space = r"(?:_|-|\s+(?:# ?)?)"
    return re.compile(rf"(?<![a-z])(?:{words.replace(' ', space)})(?![a-z])")


def read_word_list() -> WordList:
    data = tomllib.loads((REPOSITORY / "tests" / "plain_words.toml").read_text())
    return WordList(
        words=[
            Rule(whole_words(words), row["instead"], re.compile("|".join(row["except"])) if "except" in row else None)
            for words, row in data["words"].items()
        ],
        names=[
            Rule(re.compile(rf"(?<!\w){re.escape(name)}(?!\w)"), instead) for name, instead in data["names"].items()
        ],
        exempt=tuple(data["exempt"]),
        any_word=whole_words("|".join(data["words"])),
        any_name=re.compile("|".join(map(re.escape, data["names"]))),
    )


def files() -> Iterator[tuple[str, str]]:
    """Path from the repository's root, and text."""
    for top in sorted([*REPOSITORY.glob("*.md"), REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml"]):
        yield top.name, top.read_text()
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            hidden = any(part.endswith((".egg-info", "__pycache__")) for part in path.parts)
            if path.suffix in SUFFIXES and path.is_file() and not hidden:
                yield str(path.relative_to(REPOSITORY)), path.read_text(errors="replace")  # recorded logs have bytes


WORD_LIST = read_word_list()


def test_everything_is_in_plain_words() -> None:
    found = [line for path, text in files() if WORD_LIST.applies_to(path) for line in WORD_LIST.found(path, text)]
    if found:
        pytest.fail(f"{len(found)} words of tests/plain_words.toml are in use:\n" + "\n".join(found), pytrace=False)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("the agent is told why", [1]),
        ("agents_told", [1]),
        ("class ToldFacts:", [1]),
        ("TOLD = 1", [1]),
        ("# it waits so\n    # long", [1]),
        ("one\ntwo so_long\n", [2]),
        ("from understudy_controlplane.decide.launches import of_gpu", [1]),
        ("unfolds, untold, gateway, secondhand", []),
        ('run as "nobody", uid 65534', []),
        ("nobody is called", [1]),
    ],
)
def test_a_word_is_found_in_prose_and_in_names(text: str, lines: list[int]) -> None:
    found = WORD_LIST.found("a.py", text)
    assert [int(line.split(":")[1]) for line in found] == lines


def test_a_word_is_found_in_the_name_of_a_file() -> None:
    assert WORD_LIST.found("decide/life.py", "") == ["decide/life.py: the file's name"]
