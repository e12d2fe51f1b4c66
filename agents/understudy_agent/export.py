"""`understudy export-hook DIRECTORY`: the hook for training code alone, as a package `understudy` for PYTHONPATH.

A user's environment then needs no installation, and sees nothing of this one's other packages.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

NAME = "understudy"


class ExportError(Exception):
    """Nothing was written; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="understudy export-hook",
        description="Copy the package that training code imports to DIRECTORY/understudy. Needs Python there, no more.",
    )
    parser.add_argument("directory", type=Path, help="where to; put it on the jobs' PYTHONPATH")
    directory = parser.parse_args(arguments).directory.absolute()
    try:
        export(directory)
    except (ExportError, OSError) as error:
        sys.stderr.write(f"understudy export-hook: {error}\n")
        return 1
    sys.stdout.write(f"{directory / NAME} is there; in jobs:\nexport PYTHONPATH={directory}\n")
    return 0


def export(directory: Path) -> None:
    """Can be run again, under running jobs too: each file is replaced as a whole. Raises ExportError, OSError."""
    package = directory / NAME
    modules = {one.name: one.read_bytes() for one in files("understudy").iterdir() if one.is_file()}
    if package.is_dir() and any(package.iterdir()) and not _is_ours(package, modules):
        raise ExportError(f"{package} is something else: choose another directory, or move it away")
    package.mkdir(parents=True, exist_ok=True)
    for name, content in modules.items():
        partial = package / f".{name}.{os.getpid()}"
        partial.write_bytes(content)
        partial.chmod(0o644)
        partial.replace(package / name)


def _is_ours(package: Path, modules: dict[str, bytes]) -> bool:
    """An earlier export, finished or not."""
    sign = modules["__init__.py"].splitlines()[0]
    try:
        return (package / "__init__.py").read_bytes().splitlines()[:1] == [sign]
    except FileNotFoundError:
        return all(
            one.name.lstrip(".").split(".")[0] in {Path(name).stem for name in modules} for one in package.iterdir()
        )


if __name__ == "__main__":
    sys.exit(main())
