"""`understudy help TOPIC`, and messages that name documents."""

from __future__ import annotations

import ast
import re

import pytest

from tests import REPOSITORY
from understudy_agent import documents
from understudy_agent.entry import main

NAMES_FILE = re.compile(r"docs/[a-z-]+\.md")
NAMES_TOPIC = re.compile(r"`understudy help ([a-z-]+)`")


def messages() -> list[tuple[str, str]]:
    """File and text of each string of the product that is no docstring."""
    found = []
    for folder in ("agents", "controlplane"):
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            tree = ast.parse(file.read_text())
            docstrings = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
            found += [
                (str(file.relative_to(REPOSITORY)), one.value)
                for one in ast.walk(tree)
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docstrings
            ]
    return found


def test_no_message_names_a_file_that_packages_do_not_hold() -> None:
    texts = messages()
    assert [one for one in texts if NAMES_FILE.search(one[1])] == []
    named = {topic for _, text in texts for topic in NAMES_TOPIC.findall(text)} - {"topics"}
    assert "configuration" in named
    assert named <= documents.topics().keys()


def test_a_document_and_a_section_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "runbooks", "UnderstudyBreakerOpen"]) == 0
    section = capsys.readouterr().out
    assert section.startswith("## UnderstudyBreakerOpen")
    assert section.count("## ") == 1
    assert main(["help", "runbooks", "pool_short"]) == 0
    assert "\n## UnderstudySparesShort\n" in capsys.readouterr().out, "the section to which it leads"
    assert main(["help", "runbooks", "no_standby"]) == 0
    assert capsys.readouterr().out.startswith("## UnderstudyNoStandby")
    assert main(["help", "docs/api.md"]) == 0
    assert capsys.readouterr().out.startswith("# API")
    assert main(["help", "topics"]) == 0
    assert "runbooks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"), [(["runbook"], "did you mean runbooks?"), (["runbooks", "x y"], "there are Runbooks, ")]
)
def test_an_unknown_topic_brings_what_there_is(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *words]) == 2
    assert hint in capsys.readouterr().err
