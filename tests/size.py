"""The size of the project: `make size` prints it and writes `build/size.json`.

Lines are counted as they stand, with comments and blank ones: of Python, and of pages, scripts and policies that are
shipped with it. Settings, commands and metrics are counted in their reference pages, which a test holds to the code.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import PurePosixPath

from tests import REPOSITORY
from understudy_controlplane.api.verbs import VERBS
from understudy_controlplane.decide.table import TABLE
from understudy_controlplane.store.tables import metadata

OUTPUT = REPOSITORY / "build" / "size.json"
CODE = (".css", ".html", ".js", ".mako", ".py", ".sh", ".toml")
PRODUCT = ("agents", "controlplane", "deploy", "migrations")
WORD = r"[^\s|]*\w[^\s|]*"
ROUTE = r"^ +@\w+\.(?:get|post|put|delete|patch)\("


def main() -> None:
    measured = size()
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(measured, indent=2) + "\n")
    for name, value in measured.items():
        if isinstance(value, dict):
            print(f"{name}: {sum(value.values()):,}")
            for part, number in sorted(value.items(), key=lambda item: -item[1]):
                print(f"  {number:7,}  {part}")
        else:
            print(f"{name}: {value:,}")


def size() -> dict[str, int | dict[str, int]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    files = [REPOSITORY / name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).is_file()]
    product: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    words: Counter[str] = Counter()
    routes = 0
    for file in files:
        path = PurePosixPath(file.relative_to(REPOSITORY))
        if path.suffix in CODE and path.parts[0] in (*PRODUCT, "tests"):
            text = file.read_text()
            counted = tests if path.parts[0] == "tests" else product
            counted[_package(path)] += text.count("\n")
            routes += len(re.findall(ROUTE, text, re.MULTILINE)) if counted is product else 0
        elif path.suffix == ".md" and path.parts[0] in ("docs", path.name):
            words[str(path)] = len(re.findall(WORD, file.read_text()))
    reference = {page: (REPOSITORY / "docs" / f"{page}.md").read_text() for page in ("configuration", "cli", "metrics")}
    return {
        "product_lines": dict(product),
        "test_lines": dict(tests),
        "document_words": dict(words),
        "settings": len(re.findall(r"^\| `", reference["configuration"].partition("## Top level")[2], re.MULTILINE)),
        "commands": len(re.findall(r"^\| `understudy ", reference["cli"], re.MULTILINE)),
        "metrics": len(re.findall(r"^\| `understudy_", reference["metrics"], re.MULTILINE)),
        "routes": routes + len(VERBS),
        "rows": len(TABLE),
        "tables": len(metadata.tables),
        "revisions": len(list((REPOSITORY / "migrations" / "versions").glob("*.py"))),
    }


def _package(path: PurePosixPath) -> str:
    """The folder that a reader knows by name: a package, and in the control plane and the tests one of its rooms."""
    depth = {"controlplane": 3, "agents": 2, "tests": 2}.get(path.parts[0], 1)
    return "/".join(path.parts[: min(depth, len(path.parts) - 1)])


if __name__ == "__main__":
    main()
