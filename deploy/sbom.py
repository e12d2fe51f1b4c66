"""What a control plane consists of, with versions, licences and digests: sbom.py DIRECTORY writes CycloneDX (JSON).

It lists slurm-understudy[controlplane] and all that this needs, as installed here; requirements.lock pins the versions.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PROJECT = "slurm-understudy"
EXTRAS = {PROJECT: {"controlplane"}, "uvicorn": {"standard"}}
LOCK = Path(__file__).parents[1] / "requirements.lock"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def digests() -> dict[str, list[str]]:
    """Package → SHA-256 of its files, as pinned."""
    found: dict[str, list[str]] = {}
    for line in LOCK.read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            current = found.setdefault(normal(line.partition("==")[0]), [])
        elif "--hash=sha256:" in line:
            current.append(line.partition("sha256:")[2].rstrip(" \\"))
    return found


def needs(package: Distribution, name: str) -> Iterator[str]:
    for text in package.requires or ():
        requirement = Requirement(text)
        wanted = [{"extra": ""}, *({"extra": extra} for extra in EXTRAS.get(name, ()))]
        if requirement.marker is None or any(requirement.marker.evaluate(extra) for extra in wanted):
            yield normal(requirement.name)


def licence(package: Distribution) -> str:
    """Licence as its author states it."""
    stated = package.metadata.json
    classified = [text.rpartition(" :: ")[2] for text in stated.get("classifier", ()) if "License ::" in text]
    whole = stated.get("license_expression") or ", ".join(classified) or stated.get("license", "")
    return str(whole).partition("\n")[0]


def packages() -> dict[str, tuple[Distribution, list[str]]]:
    """Name → package and the names that it needs. Raises PackageNotFoundError for one that is not installed."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    waiting = [PROJECT]
    while waiting:
        name = waiting.pop()
        if name not in found:
            package = distribution(name)
            found[name] = (package, sorted(set(needs(package, name))))
            waiting += found[name][1]
    return found


def bill_of_materials() -> dict[str, Any]:
    known, pinned = packages(), digests()
    purl = {name: f"pkg:pypi/{name}@{package.version}" for name, (package, _) in known.items()}
    components = [
        {
            "type": "application" if name == PROJECT else "library",
            "bom-ref": purl[name],
            "name": name,
            "version": package.version,
            "purl": purl[name],
            "licenses": [{"license": {"name": licence(package)}}],
            "properties": [{"name": "sha256 of a file", "value": digest} for digest in pinned.get(name, ())],
        }
        for name, (package, _) in sorted(known.items())
    ]
    dependencies = [
        {"ref": purl[name], "dependsOn": [purl[other] for other in needed]}
        for name, (_, needed) in sorted(known.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": components,
        "dependencies": dependencies,
    }


def main() -> int:
    try:
        bill = bill_of_materials()
    except PackageNotFoundError as error:
        print(f"sbom: {error.name} is not installed; run make setup-check", file=sys.stderr)
        return 1
    path = Path(sys.argv[1]) / f"{PROJECT}.cdx.json"
    path.write_text(json.dumps(bill, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
