"""Documents and messages name no setting that a configuration refuses."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import REPOSITORY
from understudy_controlplane.config import Config, parse_config
from understudy_controlplane.config.section import Section

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PARAMETERS = {
    f"{name}.{key}"
    for name, field in Config.model_fields.items()
    if isinstance(section := field.get_default(), Section)
    for key in section.FIXED
}


def named_in(text: str) -> set[str]:
    return PARAMETERS & set(re.findall(r"\w+\.\w+", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_page_names_only_what_a_configuration_may_name(page: Path) -> None:
    text = page.read_text()
    assert named_in(text) == set()
    for block in blocks_for_the_control_plane(text):
        parse_config(block, page.name)


def blocks_for_the_control_plane(text: str) -> Iterator[str]:
    """Blocks of TOML that are its own: agents and programs have other tables."""
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        names = tomllib.loads(block).keys()
        if names <= Config.model_fields.keys():
            yield block if "cluster" in names else f'cluster = "c"\n{block}'


def test_no_message_names_a_parameter_as_a_setting() -> None:
    found = {}
    for path in (REPOSITORY / "controlplane").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and named_in(node.value):
                found[f"{path.name}:{node.lineno}"] = named_in(node.value)
    assert found == {}
