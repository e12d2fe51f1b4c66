"""`understudy export-hook DIRECTORY`: copies the package `understudy`, which training code imports, to a directory for
PYTHONPATH.

The user's environment then needs no installation, and none of the agent's packages are visible in it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from understudy_agent.own_files import create_directory

NAME = "understudy"


class ExportError(Exception):
    """Nothing was written; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="understudy export-hook",
        description=f"Copy the package that training code imports to DIRECTORY/{NAME}. "
        "Jobs need Python 3.9 or newer and no other package to use it.",
    )
    parser.add_argument("directory", type=Path, help="the directory to copy to; put it on the jobs' PYTHONPATH")
    directory = parser.parse_args(arguments).directory.absolute()
    try:
        export(directory)
    except (ExportError, OSError) as error:
        sys.stderr.write(f"understudy export-hook: {error}\n")
        return 1
    sys.stdout.write(f"Exported to {directory / NAME}. In batch scripts:\nexport PYTHONPATH={directory}\n")
    return 0


def export(directory: Path) -> None:
    """Can be repeated while jobs use the export: each file is replaced as a whole. Raises ExportError, OSError."""
    package = directory / NAME
    modules = {one.name: one.read_bytes() for one in files(NAME).iterdir() if one.is_file()}
    if package.is_dir() and any(package.iterdir()) and not _is_an_export(package, modules):
        raise ExportError(f"{package} is not an export of the hook: choose another directory, or move it away")
    create_directory(package)
    for name, content in modules.items():
        partial = package / f".{name}.{os.getpid()}"
        partial.write_bytes(content)
        partial.chmod(0o644)
        partial.replace(package / name)


def _is_an_export(package: Path, modules: dict[str, bytes]) -> bool:
    """An earlier export, complete or not."""
    first_line = modules["__init__.py"].splitlines()[0]
    try:
        return (package / "__init__.py").read_bytes().splitlines()[:1] == [first_line]
    except FileNotFoundError:
        known = {Path(name).stem for name in modules}
        return all(one.name.lstrip(".").split(".")[0] in known for one in package.iterdir())


if __name__ == "__main__":
    sys.exit(main())
