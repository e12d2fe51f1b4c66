"""Every command that the documents name exists, with the options and arguments that they give it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from understudy_agent.commands import COMMANDS
from understudy_agent.documents import topics

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
DOCUMENTS = [
    path
    for path in sorted([*DOCS.glob("**/*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"])
    if "/adr/" not in str(path) and path.name != "cli.md"  # generated from the commands themselves
]
_NAMED = re.compile(
    r"`(?:sudo )?understudy ([a-z][^`]*)`|^(?:\$ |# |ssh \w+ )?(?:sudo )?understudy ([a-z][^#\n]*)", re.MULTILINE
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]*\b|…|\.\.\.")
_OPTIONAL = re.compile(r"\[[^\]]*\]+|\([^)]*\)")
MAKE = set(re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
UNITS = {path.stem for path in (REPOSITORY / "deploy/systemd").glob("*.service")}


def named(document: Path) -> Iterator[str]:
    for match in _NAMED.finditer(document.read_text()):
        yield from (match[1] or match[2]).split(" && understudy ")


def problem(command: str) -> str:
    """Empty: it exists, and takes what it is given. A command that is only named may be given nothing."""
    words = shlex.split(_OPTIONAL.sub("", re.split(r" [>|;]| && | <", command)[0]))
    if words[0] == "help":
        return "" if words[1] in {*COMMANDS, *topics(), "topics", "TOPIC"} else f"there is no document {words[1]}"
    if words[0] not in COMMANDS:
        return f"understudy has no command {words[0]}"
    program: object = COMMANDS[words[0]].load()
    given = words[1:]
    while isinstance(program, click.Group) and given:
        if given[0] not in program.commands:
            return f"understudy {words[0]} has no command {given[0]}"
        program = program.commands[given.pop(0)]
    if not isinstance(program, click.Command):
        return ""  # of the agent: its own tests hold its options
    known = {option for one in program.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    unknown = sorted(set(_OPTION.findall(command)) - known)
    return f"understudy {words[0]} has no option {', '.join(unknown)}" if unknown else _misuse(program, given)


def _misuse(program: click.Command, given: list[str]) -> str:
    if all(one.startswith("-") for one in given):
        return ""
    try:
        program.make_context("it", [_PLACEHOLDER.sub("1", one) for one in given])
    except click.UsageError as error:
        wrong = error.format_message()
        return "" if re.search(r"'1' is not one of|'1' does not exist", wrong) else wrong
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_exists(document: Path) -> None:
    assert [f"{command}: {found}" for command in named(document) if (found := problem(command))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_target_of_make_and_every_service_exists(document: Path) -> None:
    text = document.read_text()
    targets = re.findall(r"`make ([a-z][\w-]*)", text) + re.findall(r"^(?:\$ )?make ([a-z][\w-]*)", text, re.MULTILINE)
    assert [one for one in targets if one not in MAKE] == []
    units = re.findall(r"(?:systemctl [a-z -]+|journalctl -u )(understudy[\w-]*)", text)
    assert [one for one in units if one not in UNITS] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert problem("hold c2 fan") == "understudy has no command hold"
    assert problem("node drain c2") == "understudy node has no command drain"
    assert problem("node hold c2 fan --until 4h") == "understudy node has no option --until"
    assert problem("node hold c2 fan --for 4h") == ""
    assert problem("node hold c2") == "Missing argument 'REASON'."
    assert problem("recovery show seventeen") != ""
    assert problem("recovery cancel ID REASON > file.txt") == ""
    assert sum(len(list(named(document))) for document in DOCUMENTS) > 50
    assert len(MAKE) > 20
    assert len(UNITS) == 3
