"""Every command that the documents name exists, with the options that they give it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from understudy_agent.commands import COMMANDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENTS = [path for path in sorted([*DOCS.glob("**/*.md"), DOCS.parent / "README.md"]) if "/adr/" not in str(path)]
_NAMED = re.compile(
    r"`(?:sudo )?understudy ([a-z][^`]*)`|^(?:\$ |# )?(?:sudo )?understudy ([a-z][^#\n]*)", re.MULTILINE
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def named(document: Path) -> Iterator[str]:
    for match in _NAMED.finditer(document.read_text()):
        yield from (match[1] or match[2]).split(" && understudy ")


def problem(command: str) -> str:
    """Empty: it exists."""
    words = command.split()
    if words[0] not in COMMANDS:
        return f"understudy has no command {words[0]}"
    program: object = COMMANDS[words[0]].load()
    for word in words[1:]:
        if not isinstance(program, click.Group):
            break
        if word not in program.commands:
            return f"understudy {words[0]} has no command {word}"
        program = program.commands[word]
    if not isinstance(program, click.Command):
        return ""  # of the agent: its own tests hold its options
    known = {option for one in program.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    unknown = sorted(set(_OPTION.findall(command)) - known)
    return f"understudy {words[0]} has no option {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_exists(document: Path) -> None:
    assert [f"{command}: {found}" for command in named(document) if (found := problem(command))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert problem("hold c2 fan") == "understudy has no command hold"
    assert problem("node drain c2") == "understudy node has no command drain"
    assert problem("node hold c2 fan --until 4h") == "understudy node has no option --until"
    assert problem("node hold c2 fan --for 4h") == ""
    assert sum(len(list(named(document))) for document in DOCUMENTS) > 50
