"""Documents are true: those made from the code are up to date, the others name what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.generate import DOCUMENTS, GUARDS
from understudy_controlplane.fleet.decision import Because
from understudy_controlplane.fleet.recovery import StepName

DOCS = Path(__file__).resolve().parents[2] / "docs"
REPOSITORY = DOCS.parent

JOURNEYS = sorted(set(re.findall(r"`([\w/]+\.py:[\w.]+)`", (DOCS / "architecture.md").read_text())))
"""Places in the code that the architecture's journeys pass: path and function."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_generated_document_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == DOCUMENTS[name](), "run `make docs`"


def test_every_guard_is_explained() -> None:
    assert set(GUARDS) == set(Because) - {Because.RULE}


def test_every_recovery_step_is_explained() -> None:
    text = (DOCS / "architecture.md").read_text()
    assert [step for step in StepName if step is not StepName.FILL_POOL and f"`{step.value}`" not in text] == []


def test_every_room_is_described() -> None:
    text = (DOCS / "architecture.md").read_text()
    rooms = [
        path.parent.name for path in (REPOSITORY / "controlplane" / "understudy_controlplane").glob("*/__init__.py")
    ]
    assert [room for room in rooms if f"`{room}/`" not in text] == []


@pytest.mark.parametrize("place", JOURNEYS)
def test_the_journeys_through_the_code_name_functions_that_exist(place: str) -> None:
    path, _, name = place.partition(":")
    [source] = [
        folder / path
        for folder in (REPOSITORY / "agents", REPOSITORY / "controlplane" / "understudy_controlplane")
        if (folder / path).exists()
    ]
    scope: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef = ast.parse(source.read_text())
    for part in name.split("."):
        scope = [
            one
            for one in scope.body
            if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and one.name == part
        ][-1]  # of an overloaded one the last has the code


def test_every_route_is_documented() -> None:
    sources = [*(REPOSITORY / "controlplane" / "understudy_controlplane").glob("*/*.py")]
    found = {
        (method.upper(), path)
        for source in sources
        for method, path in re.findall(r'@router\.(get|post)\("([^"]+)"', source.read_text())
    }
    text = (DOCS / "api.md").read_text()
    assert found
    assert sorted(path for method, path in found if f"{method} " not in text or f"{path}`" not in text) == []


@pytest.mark.parametrize("document", sorted([*DOCS.glob("**/*.md"), *REPOSITORY.glob("*.md")]))
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())
    broken = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert broken == []


def test_every_promise_names_tests_that_exist() -> None:
    heading = "| promise | under which fault | test |\n|---|---|---|\n"
    table = (REPOSITORY / "tests" / "promises.md").read_text().partition(heading)[2].partition("\n\n")[0]
    promises = [line.split("|")[1:-1] for line in table.splitlines()]
    assert len(promises) > 15
    for promise, _, shown_by in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", shown_by)
        assert named, promise
        for path, name in named:
            text = (REPOSITORY / path).read_text()
            assert not name or re.search(rf"^ *(async )?(def|class) {name}\b", text, re.MULTILINE), f"{promise}: {name}"


def test_every_attack_has_a_test_that_exists() -> None:
    """Also what a user, root of one node and a stranger can cause at most."""
    tables = re.split(r"\| test \|\n(?:\|---)+\|\n", (REPOSITORY / "tests" / "attacks.md").read_text())[1:]
    attacks = [line.split("|")[1:-1] for table in tables for line in table.partition("\n\n")[0].splitlines()]
    assert len(tables) == 3
    assert len(attacks) > 110
    for *attack, shown_by in attacks:
        named = re.findall(r"`(tests/[\w/.]+|make [\w-]+)`", shown_by)
        missing = [one for one in named if one.startswith("tests/") and not _has_tests(REPOSITORY / one)]
        assert named and not missing, f"{attack}: {missing}"


def _has_tests(path: Path) -> bool:
    """What is no `test_*.py` is a program, or looks at what others leave."""
    files = path.rglob("test_*.py") if path.is_dir() else [path]
    return any(not one.name.startswith("test_") or "\ndef test_" in one.read_text() for one in files if one.exists())
