"""Builds the packages of Debian and RPM: python -m deploy.packages.build [OPTIONS] DIRECTORY

Without options: the Debian packages for this machine's version of Python. `understudy-agent` has a virtual environment
in /opt/understudy with what requirements.lock pins, by its digests; `understudy-controlplane` adds its own packages
to it.
It prints the paths of the packages, in a folder for each system, so that `*.deb` there names those for one Python.
Files that are there already for the same content are used again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete
from packaging.requirements import Requirement

from deploy.sbom import LOCK, normal

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
HOME = "opt/understudy"
PROJECT = "slurm-understudy"
AWS_SERVICES = ("s3", "sso", "sso-oidc", "sts")
"""What copies in an object store need of botocore, which describes four hundred."""
SOURCES = (
    "agents",
    "controlplane",
    "migrations",
    "deploy",
    "pyproject.toml",
    "requirements.lock",
    "README.md",
    "LICENSE",
)
MAINTAINER = "The Understudy authors"
GLIBC_MINORS = range(34, 4, -1)
"""The oldest system that gets these packages is RHEL 9, with glibc 2.34."""

COMMAND = f"""#!/{HOME}/bin/python -I
import sys
from understudy_agent.entry import main
sys.exit(main())
"""


COMPLETIONS = {
    ("bash", "deb"): "usr/share/bash-completion/completions/understudy",
    ("bash", "rpm"): "usr/share/bash-completion/completions/understudy",
    ("zsh", "deb"): "usr/share/zsh/vendor-completions/_understudy",
    ("zsh", "rpm"): "usr/share/zsh/site-functions/_understudy",
    ("fish", "deb"): "usr/share/fish/vendor_completions.d/understudy.fish",
    ("fish", "rpm"): "usr/share/fish/vendor_completions.d/understudy.fish",
}
"""Shell and kind of package → where the shell looks for completions."""
COMPLETION_VARIABLE = "_UNDERSTUDY_COMPLETE"
"""`understudy_agent.commands` has it too. A test compares them."""


@dataclass(frozen=True, slots=True)
class Flavour:
    python: str
    kind: str  # "deb" or "rpm"
    systems: tuple[str, ...]
    """Folders that get these packages; a package for another Python does not install there."""

    @property
    def library(self) -> str:
        return f"{HOME}/lib/python{self.python}/site-packages"


FLAVOURS = (
    Flavour("3.11", "deb", ("debian-12", "ubuntu-22.04")),
    Flavour("3.12", "deb", ("ubuntu-24.04",)),
    Flavour("3.13", "deb", ("debian-13",)),
    Flavour("3.11", "rpm", ("rhel-9",)),
)


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    summary: str
    needs: tuple[str, ...]
    recommends: tuple[str, ...] = ()
    architecture: str = "amd64"


def packages(flavour: Flavour, version: str) -> tuple[Package, ...]:
    python = f"python{flavour.python}"
    same = f"understudy-agent (= {version})" if flavour.kind == "deb" else f"understudy-agent = {version}"
    return (
        Package(
            "understudy-agent", "Understudy on compute nodes: agent, launcher, hooks for Slurm", (python,), ("munge",)
        ),
        Package(
            "understudy-controlplane", "Understudy's control plane for Slurm", (same, "systemd"), ("slurm-client",)
        ),
        Package("understudy-hook", "What training code imports to report its steps to Understudy", (), (), "all"),
    )


def closure(roots: Iterable[str]) -> set[str]:
    """The distributions that these requirements need, as installed here; without this project's own."""
    found: set[str] = set()
    waiting = [Requirement(root) for root in roots]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        found.add(normal(requirement.name))
        for text in distribution(requirement.name).requires or ():
            needed = Requirement(text)
            extras = [{"extra": extra} for extra in ("", *requirement.extras)]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
                waiting.append(needed)
    return {name for name in found if not name.startswith(PROJECT)}


def pinned(names: set[str]) -> str:
    """The lines of requirements.lock for these distributions, with their digests."""
    entries = re.findall(r"^([\w.-]+)==[^\n]*(?:\n    --hash=[^\n]*)*", LOCK.read_text(), re.MULTILINE)
    texts = re.finditer(r"^([\w.-]+)==[^\n]*(?:\n    --hash=[^\n]*)*", LOCK.read_text(), re.MULTILINE)
    missing = names - {normal(name) for name in entries}
    if missing:
        raise SystemExit(f"requirements.lock: {', '.join(sorted(missing))} is not pinned; make the file again")
    return "\n".join(found[0] for found in texts if normal(found[1]) in names) + "\n"


def install(names: set[str], flavour: Flavour, cache: Path) -> Path:
    """A folder with these distributions for that version of Python, from wheels only."""
    lock = pinned(names)
    folder = cache / f"python{flavour.python}-{digest(lock)}"
    if folder.exists():
        return folder
    unfinished = Path(tempfile.mkdtemp(dir=cache))
    (unfinished / "lock").write_text(lock)
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS] + [
        "--platform=manylinux2014_x86_64"
    ]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
    ]
    wanted = ["--only-binary=:all:", "--require-hashes", f"--python-version={flavour.python}", *platforms]
    run(*pip, *wanted, f"--target={unfinished / 'files'}", f"--requirement={unfinished / 'lock'}")
    shutil.rmtree(unfinished / "files" / "bin", ignore_errors=True)
    for service in (unfinished / "files" / "botocore" / "data").glob("*/"):
        if service.name not in AWS_SERVICES:
            shutil.rmtree(service)
    for tests in [one for one in (unfinished / "files").rglob("tests") if one.is_dir()]:
        shutil.rmtree(tests)
    (unfinished / "files").rename(folder)
    shutil.rmtree(unfinished)
    return folder


def wheels(cache: Path) -> Path:
    """This project's own two distributions, unpacked."""
    folder = cache / f"own-{source_digest()}"
    if not folder.exists():
        unfinished = Path(tempfile.mkdtemp(dir=cache))
        run(str(DEPLOY / "build_wheels.sh"), sys.executable, str(unfinished))
        for wheel in unfinished.glob("*.whl"):
            shutil.unpack_archive(wheel, unfinished / "files", "zip")
        (unfinished / "files").rename(folder)
        shutil.rmtree(unfinished)
    return folder


def fill(package: Package, tree: Path, flavour: Flavour, cache: Path) -> None:
    """Puts all files of the package below `tree`."""
    own, library = wheels(cache), tree / flavour.library
    agent = closure([f"{PROJECT}[s3]"])
    if package.name == "understudy-hook":
        copy(own / "understudy", tree / "usr/share/understudy/hook/understudy")
        if flavour.kind == "deb":
            link(tree / "usr/lib/python3/dist-packages/understudy", "/usr/share/understudy/hook/understudy")
        return
    if package.name == "understudy-agent":
        copy(install(agent, flavour, cache), library)
        on_nodes = ("agent", "keeper", "launcher", "selfcheck", "wire")
        names = (
            "understudy",
            *(f"understudy_{one}" for one in on_nodes),
            *(one.name for one in own.glob("*.dist-info")),
        )
        for name in names:
            copy(own / name, library / name)
        write(tree / HOME / "pyvenv.cfg", f"home = /usr/bin\nversion = {flavour.python}\n")
        link(tree / HOME / "bin/python", f"/usr/bin/python{flavour.python}")
        write(tree / HOME / "bin/understudy", COMMAND, 0o755)
        unit = "understudy-keeper.service"
        copy(DEPLOY / "systemd" / unit, tree / "usr/lib/systemd/system" / unit)
        link(tree / "usr/bin/understudy", f"/{HOME}/bin/understudy")
        (tree / "etc/understudy").mkdir(parents=True)
    else:
        everything = closure([f"{PROJECT}[controlplane,notify,postgres]"])
        copy(install(everything - agent, flavour, cache), library)
        for name in ("understudy_controlplane", "understudy_client"):
            copy(own / name, library / name)
        write_completions(tree, flavour.kind)
        for name in ("prometheus", "grafana", "proxy"):
            copy(DEPLOY / name, tree / f"usr/share/{package.name}/{name}")
        copy(DEPLOY / "systemd/understudy.sysusers", tree / "usr/lib/sysusers.d/understudy.conf")
        copy(DEPLOY / f"systemd/{package.name}.tmpfiles", tree / f"usr/lib/tmpfiles.d/{package.name}.conf")
    short = package.name.removeprefix("understudy-")
    copy(DEPLOY / f"systemd/{package.name}.service", tree / f"usr/lib/systemd/system/{package.name}.service")
    copy(DEPLOY / f"systemd/{package.name}.default", tree / f"etc/default/{package.name}")
    copy(DEPLOY / f"examples/{short}.toml", tree / f"usr/share/doc/{package.name}/examples/{short}.toml")


def write_completions(tree: Path, kind: str) -> None:
    command = click.Command("understudy")
    for (shell, of_kind), path in COMPLETIONS.items():
        if of_kind == kind:
            script = BashComplete if shell == "bash" else ZshComplete if shell == "zsh" else FishComplete
            write(tree / path, script(command, {}, "understudy", COMPLETION_VARIABLE).source())


def build_deb(package: Package, tree: Path, version: str, target: Path) -> None:
    control = [
        f"Package: {package.name}",
        f"Version: {version}",
        f"Architecture: {package.architecture}",
        f"Maintainer: {MAINTAINER}",
        "Section: admin",
        "Priority: optional",
        *([f"Depends: {', '.join(package.needs)}"] if package.needs else []),
        *([f"Recommends: {', '.join(package.recommends)}"] if package.recommends else []),
        f"Installed-Size: {sum(one.lstat().st_size for one in tree.rglob('*')) // 1024}",
        f"Description: {package.summary}",
        "",
    ]
    write(tree / "DEBIAN/control", "\n".join(control))
    configuration = [f"/{one.relative_to(tree)}\n" for one in tree.glob("etc/**/*") if one.is_file()]
    if configuration:
        write(tree / "DEBIAN/conffiles", "".join(configuration))
    for script in (DEPLOY / "packages/scripts").glob(f"{package.name}.*"):
        write(tree / "DEBIAN" / script.suffix[1:], script.read_text(), 0o755)
    run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", str(tree), str(target))


def build_rpm(package: Package, tree: Path, version: str, target: Path) -> None:
    files = [one for one in sorted(tree.rglob("*")) if one.is_symlink() or not one.is_dir()]
    listed = [
        f'{"%config(noreplace) " if one.is_relative_to(tree / "etc") else ""}"/{one.relative_to(tree)}"'
        for one in files
    ] + [f'%dir "/{one.relative_to(tree)}"' for one in tree.glob("etc/understudy")]
    number, _, release = version.partition("-")
    lines = [
        "%define debug_package %{nil}",
        "%define __os_install_post %{nil}",
        "%define _build_id_links none",
        f"Name: {package.name}",
        f"Version: {number}",
        f"Release: {release}",
        f"Summary: {package.summary}",
        "License: Apache-2.0",
        "AutoReqProv: no",
        *([] if package.architecture == "amd64" else ["BuildArch: noarch"]),
        *(f"Requires: {need}" for need in package.needs),
        *(f"Recommends: {need}" for need in package.recommends),
        f"%description\n{package.summary}",
        f"%install\ncp -a {tree}/. %{{buildroot}}",
    ]
    sections = {"postinst": "%post", "prerm": "%preun", "postrm": "%postun"}
    for script in sorted((DEPLOY / "packages/scripts").glob(f"{package.name}.*")):
        lines.append(f"{sections[script.suffix[1:]]}\n" + script.read_text().split("\n", 1)[1])
    lines += ["%files", "%defattr(-,root,root)", *listed]
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "understudy.spec"
        spec.write_text("\n".join(lines) + "\n")
        define = ["--define", f"_topdir {folder}/rpm", "--define", "_binary_payload w3.zstdio"]
        run("rpmbuild", "-bb", "--quiet", "--target", "x86_64", *define, str(spec))
        [built] = Path(folder).glob("rpm/RPMS/*/*.rpm")
        shutil.move(built, target)


def build(flavour: Flavour, release: str, directory: Path) -> list[Path]:
    cache = directory / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    number = distribution(PROJECT).version
    built = []
    for_python = f"~python{flavour.python}" if flavour.kind == "deb" else ".el9"
    version = f"{number}-{release}{for_python}"
    for package in packages(flavour, version):
        architecture = (
            package.architecture
            if flavour.kind == "deb"
            else {"amd64": "x86_64", "all": "noarch"}[package.architecture]
        )
        separator = "_" if flavour.kind == "deb" else "-"
        end = f"_{architecture}.deb" if flavour.kind == "deb" else f".{architecture}.rpm"
        first, *others = [directory / source_digest() / system for system in flavour.systems]
        target = first / f"{package.name}{separator}{version}{end}"
        built.append(target)
        if target.exists():
            continue
        first.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            tree = Path(folder) / "tree"
            tree.mkdir(mode=0o755)
            fill(package, tree, flavour, cache)
            paths = files_below(tree)
            (build_deb if flavour.kind == "deb" else build_rpm)(package, tree, version, target)
            check(target, paths, Path(folder) / "unpacked")
        for other in others:
            other.mkdir(exist_ok=True)
            (other / target.name).unlink(missing_ok=True)
            (other / target.name).hardlink_to(target)
    return built


def check(package: Path, paths: set[str], folder: Path) -> None:
    """Unpacks the package: it must hold these files and no others."""
    if package.suffix == ".deb":
        run("dpkg-deb", "--extract", str(package), str(folder))
    else:
        folder.mkdir()
        run(
            "sh",
            "-c",
            'rpm2archive --nocompression - < "$0" | tar --extract --directory="$1"',
            str(package),
            str(folder),
        )
    difference = files_below(folder) ^ paths
    if difference:
        package.unlink()
        raise SystemExit(f"{package}: is not what was to be packed: {sorted(difference)[:10]}")


def files_below(folder: Path) -> set[str]:
    return {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_symlink() or one.is_file()}


def forget_old(directory: Path) -> None:
    """Deletes packages and unpacked wheels of earlier contents; `current` is the folder of the newest packages."""
    for folder in (*directory.glob("*"), *(directory / "cache").glob("own-*")):
        if folder.name not in ("cache", "current") and not folder.name.endswith(source_digest()):
            shutil.rmtree(folder)
    (directory / "current").unlink(missing_ok=True)
    (directory / "current").symlink_to(source_digest())


def source_digest() -> str:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *SOURCES],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    contents = ((name, (REPOSITORY / name)) for name in sorted(filter(None, listed)))
    return digest(*(f"{name}\0{digest_of(path)}" for name, path in contents if path.is_file()))


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=REPOSITORY)


def flavour_of(system: str | None) -> Flavour:
    """None: this machine's."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for one in FLAVOURS:
        if system in one.systems or (system is None and (one.python, one.kind) == (python, "deb")):
            return one
    raise SystemExit(f"no packages for Python {python}; run this with another Python, or with --all or --system")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="for all distributions, also RPMs")
    which.add_argument("--system", choices=[name for one in FLAVOURS for name in one.systems], help="for this one")
    parser.add_argument("--release", default="1", help="release of the packages")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    os.umask(0o022)
    for flavour in FLAVOURS if options.all else (flavour_of(options.system),):
        for path in build(flavour, options.release, options.directory.absolute()):
            print(path)
    forget_old(options.directory.absolute())
    if options.all:
        print("Tried on Debian 12 only. All other packages were built and unpacked, not installed.", file=sys.stderr)


if __name__ == "__main__":
    main()
