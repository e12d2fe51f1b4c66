"""`understudy serve` at a site of tests, whose parameters are shorter than those of the code.

A site's configuration may not name these parameters, so they lie in a file of their own beside it.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from understudy_controlplane.config import Config, load_config
from understudy_controlplane.config.section import Section
from understudy_controlplane.serve import serve

SERVE = ("-m", "tests.testbed.serve")
PARAMETERS_FILE = "parameters.json"

Sections = dict[str, dict[str, Any]]


def split(sections: Sections) -> tuple[Sections, Sections]:
    """What a site may set, and parameters of the code."""
    settings: Sections = {}
    parameters: Sections = {}
    for name, values in sections.items():
        section = Config.model_fields[name].get_default()
        fixed = section.FIXED if isinstance(section, Section) else frozenset()
        for key, value in values.items():
            (parameters if key in fixed else settings).setdefault(name, {})[key] = value
    return settings, parameters


def config_in_arguments() -> tuple[Config, Path]:
    file = Path(sys.argv[sys.argv.index("--config") + 1])
    return load(file), file


def load(file: Path) -> Config:
    load_config(file)  # it is one that a site could have
    raw = tomllib.loads(file.read_text())
    for name, values in json.loads(file.with_name(PARAMETERS_FILE).read_text()).items():
        raw[name] = raw.get(name, {}) | values
    return Config.model_validate(raw)


if __name__ == "__main__":
    serve(*config_in_arguments(), load=load)
