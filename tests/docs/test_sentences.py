"""Docstrings and own-line comments have a subject: none begins with a preposition or a relative word."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("agents", "controlplane", "deploy", "docs", "migrations", "tests")
WORDS = (
    "as|among|at|beside|between|by|for|from|in|into|of|on|onto|than|that|through|to|where|whether|which|whom|whose|with|"
    "within|without"
)
WITHOUT_SUBJECT = re.compile(rf"[\"'`(]*({WORDS})\b(?![^.\n]*\?)", re.IGNORECASE)
CANDIDATE = re.compile(rf"^\s*(#|[a-z]?[\"'])\s*[\"'`(]*({WORDS})\b", re.IGNORECASE | re.MULTILINE)
"""Finds fast the few files that have to be parsed."""


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, also of an attribute, and of each block of comment lines."""
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", []) if isinstance(node, ast.Module | ast.stmt) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()
    above = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            if above != token.start[0] - 1:
                yield token.start[0], token.string.lstrip("# ")
            above = token.start[0]


def offences(source: str) -> list[tuple[int, str]]:
    if not CANDIDATE.search(source):
        return []
    return [(line, text.split("\n")[0]) for line, text in prose(source) if WITHOUT_SUBJECT.match(text)]


def test_docstrings_and_comments_have_a_subject() -> None:
    found = [
        f"{file.relative_to(REPOSITORY)}:{line}: {text}"
        for folder in FOLDERS
        for file in sorted((REPOSITORY / folder).rglob("*.py"))
        for line, text in offences(file.read_text())
    ]
    if found:
        listed = "\n".join(found)
        pytest.fail(f"docstrings or comments begin without a subject: {len(found)}\n{listed}", pytrace=False)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Of steps of ranks."""', [1]),
        ('a = 1\n"""By which a file may be younger."""', [2]),
        ('def f():\n    """Whether it is so."""', [2]),
        ("# In seconds.\na = 1", [1]),
        ("# One line\n# of two.\na = 1  # in seconds", []),
        ('"""Whose node is it?"""', []),
        ('"""Newest step of which every part exists."""', []),
        ('a = f("of a text")', []),
    ],
)
def test_what_the_check_finds(source: str, lines: list[int]) -> None:
    assert [line for line, _ in offences(source)] == lines
