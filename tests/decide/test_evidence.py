"""Evidence is for people: code cannot look into it, and only what writes it down or shows it takes it out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy_controlplane
from understudy_controlplane.fleet.evidence import Evidence

PACKAGE = Path(understudy_controlplane.__file__).parent
SHOWN_IN = {"cli/analyze/kernel_log.py", "store/incidents.py", "store/journal.py"}
"""Files that write evidence down, or draw it on a screen."""


def test_it_has_no_keys_to_decide_by() -> None:
    evidence = Evidence({"repair": "reboot"}).with_more({"gpu": 3})
    for look in (lambda: evidence["repair"], lambda: "repair" in evidence, lambda: list(evidence)):  # type: ignore[index,operator,call-overload]
        with pytest.raises(TypeError):
            look()
    assert not hasattr(evidence, "get")
    assert evidence.shown() == {"repair": "reboot", "gpu": 3}


def sources(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Those that have all the words."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if all(word in text for word in words):
            yield path, ast.parse(text)


def test_only_what_stores_or_shows_it_takes_it_out() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path, source in sources("evidence", "shown")
        for call in ast.walk(source)
        if isinstance(call, ast.Attribute) and call.attr == "shown" and "evidence" in ast.unparse(call.value)
    }
    assert found == SHOWN_IN


def test_no_column_of_evidence_is_looked_into() -> None:
    """What the database holds of it is passed on whole: neither subscripted nor searched."""
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path, source in sources(".evidence")
        if "migrations" not in path.parts  # they convert what earlier releases stored; in a checkout they are a link
        for node in ast.walk(source)
        if (isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "get"))
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "evidence"
    ]
    assert found == []
