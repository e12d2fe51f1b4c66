"""slurm.conf as Slurm reads it, merged with the lines that the hooks need.

Slurm uses the last of several lines for a parameter, so a line that is only appended silently replaces the site's own.
A merge keeps the site's programs and flags: `X_with_site` runs the site's program and Understudy's hook, and the site's
line stays behind `#understudy: `. Source: src/common/parse_config.c and read_config.c of Slurm, 22.05 to 26.05.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

PARAMETERS = {
    "Prolog": "prolog",
    "Epilog": "epilog",
    "TaskProlog": "task_prolog",
    "HealthCheckProgram": "health_check",
}
_LAST_FIRST = """\
set --
for script in {site}; do
    [ ! -e "$script" ] || set -- "$script" "$@"
done
for script; do
    "$script" || exit
done
"""
"""Slurm runs what a pattern matches from the last name to the first (prep_script_slurmd.c). It runs nothing where the
pattern matches nothing.
"""

WITH_SITE = {
    "Prolog": f'"{{hook}}" || exit 1\n{_LAST_FIRST}',
    "Epilog": f'"{{hook}}" || true\n{_LAST_FIRST}',
    "TaskProlog": '"{hook}" || exit\nexec {site}\n',  # Slurm reads what both print
    "HealthCheckProgram": '{site}\nstatus=$?\n"{hook}" || exit $((status ? status : 1))\nexit $status\n',
}
"""Each runs both. A health check of the site may drain the node, so it runs first, and its exit code is kept."""

CLUSTER = "ClusterName"
INTERVAL, FLAGS = "HealthCheckInterval", "PrologFlags"
ALONE = {INTERVAL: "60", FLAGS: "Alloc"}
"""Stands for a site without such a line."""

ALLOC_FLAGS = {"alloc", "contain", "x11", "forcerequeueonfail", "nohold", "runinjob"}
"""Each of these flags makes the Prolog run on every node of a job before the job begins."""

ALL_RUN = ("Prolog", "Epilog")
"""The programs of all lines run since Slurm 24.05; before, that of the last."""

SET_ASIDE = "#understudy: "
ADDED = " # understudy"
INCLUDES_MAX = 100

_KEY_VALUE = re.compile(r'\s*([\w.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)', re.ASCII)
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE | re.ASCII)
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)#.*", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\s*$", re.ASCII)
_BLANKS = re.compile(r"\s*", re.ASCII)
_NAMES = {name.casefold(): name for name in (*PARAMETERS, *ALONE, CLUSTER)}
_PROGRAM = re.compile(r"/[A-Za-z0-9_.+@%/*?\[\]-]*")


class SlurmConfError(Exception):
    """slurm.conf cannot be read or merged with certainty; the message has the cause and what to do."""


@dataclass(frozen=True, slots=True)
class Line:
    file: Path
    first: int
    """Index of its first physical line."""
    count: int
    key: str
    value: str
    set_aside: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.first + 1}: {self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class SlurmConf:
    main: Path
    texts: dict[Path, list[str]]
    """File → its physical lines; slurm.conf and what it includes."""
    lines: tuple[Line, ...]
    """Lines of the hooks' parameters, in Slurm's order."""
    all_run: bool | None
    """Slurm is 24.05 or newer; None: not known."""

    def active(self, key: str) -> list[Line]:
        return [line for line in self.lines if line.key == key and not line.set_aside]

    def several_count(self, key: str) -> bool:
        """Raises SlurmConfError."""
        if key not in ALL_RUN:
            return False
        if self.all_run is None and len(self.active(key)) > 1:
            raise SlurmConfError(
                f"{self.main} has several lines {key}=: Slurm runs all or the last, by its version, and `scontrol "
                "--version` does not run here: put the directory of Slurm's commands into PATH, and repeat this"
            )
        return bool(self.all_run)


def read(slurm_conf: Path, all_run: bool | None) -> SlurmConf:
    """Raises SlurmConfError."""
    texts: dict[Path, list[str]] = {}
    lines: list[Line] = []
    _read(slurm_conf, slurm_conf.parent, texts, lines)
    return SlurmConf(slurm_conf, texts, tuple(lines), all_run)


def _read(file: Path, folder: Path, texts: dict[Path, list[str]], lines: list[Line], included_by: str = "") -> None:
    if len(texts) >= INCLUDES_MAX or file.resolve() in {one.resolve() for one in texts}:
        raise SlurmConfError(f"{file} is included twice, or there are over {INCLUDES_MAX} files; merge by hand")
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        remedy = f"correct {included_by}" if included_by else "name slurm.conf with --slurm-conf"
        raise SlurmConfError(f"{file} cannot be read: {error.strerror}; {remedy}") from error
    if "\0" in text:
        raise SlurmConfError(f"{file} has a NUL character, at which Slurm stops reading the line; remove it")
    texts[file] = _physical_lines(text)
    for first, count, logical, set_aside in _logical_lines(texts[file]):
        where = f"{file}:{first + 1}"
        included = _INCLUDE.match(logical)
        found = None if included else _KEY_VALUE.match(logical)
        if set_aside and not found:
            continue
        if included:
            _only_blanks(logical[included.end() :], where)
            _read(folder / _named(included[1], lines, where), folder, texts, lines, where)
        elif found is None:
            _only_blanks(logical, where)
        elif found[1].casefold() in _NAMES:
            _only_blanks(logical[found.end() :], where)
            value = found[3] if found[2] is None else found[2]
            lines.append(Line(file, first, count, _NAMES[found[1].casefold()], value, set_aside))


def _only_blanks(rest: str, where: str) -> None:
    if not _BLANKS.fullmatch(rest):
        raise SlurmConfError(f"{where}: Slurm refuses slurm.conf because of {rest.strip()!r}; correct this line")


def _named(file: str, lines: Sequence[Line], where: str) -> str:
    """%c is the cluster's name, which has to stand above. Slurm reads no patterns."""
    if "*" in file:
        raise SlurmConfError(f"{where}: Slurm does not include files by a pattern; name each file")
    names = [line.value.lower() for line in lines if line.key == CLUSTER and not line.set_aside]
    if "%c" in file and not names:
        raise SlurmConfError(f"{where}: %c is not known here; write {CLUSTER} above this line")
    return file.replace("%c", names[-1]) if names else file


def _physical_lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline="\n"))


def _logical_lines(texts: list[str]) -> Iterator[tuple[int, int, str, bool]]:
    """First physical line, number of lines, text, and whether a merge has set it aside."""
    first, logical, set_aside = 0, "", False
    for index, physical in enumerate(texts):
        if index == first:
            logical, set_aside = "", physical.startswith(SET_ASIDE)
        text = _COMMENT.sub(r"\1", physical.removeprefix(SET_ASIDE) if set_aside else physical)
        logical += _CONTINUED.sub(r"\1", text)
        is_last = index == len(texts) - 1 or (set_aside and not texts[index + 1].startswith(SET_ASIDE))
        if is_last or not _CONTINUED.search(text):
            yield first, index - first + 1, re.sub(r"\\(.)", r"\1", logical), set_aside
            first = index + 1


def with_site(key: str, directory: Path) -> Path:
    return directory / f"{PARAMETERS[key]}_with_site"


def site_scripts(conf: SlurmConf, directory: Path) -> dict[Path, str]:
    """Path → text of each script that runs a program of the site and a hook. Raises SlurmConfError.

    Also for a program that calls the hook: where slurm.conf was merged, that may not have been visible.
    """
    found = {}
    for key, name in PARAMETERS.items():
        lines = _site_lines(conf, key, directory)
        if not lines and with_site(key, directory) in map(_program, conf.active(key)):
            lines = [line for line in conf.lines if line.key == key and line.set_aside]
        if lines and not _PROGRAM.fullmatch(lines[-1].value):
            if calls(lines[-1].value, directory):
                continue
            remedy = f"let it call {directory / name} itself"
            raise SlurmConfError(f"{lines[-1]}: not an absolute path without blanks; {remedy}")
        if lines:
            head = f"#!/bin/sh\n# Runs the site's {key} and Understudy's. Written by `understudy install-hooks`.\n"
            body = WITH_SITE[key].format(hook=directory / name, site=lines[-1].value)
            found[with_site(key, directory)] = head + body
    return found


def calls(program: str, directory: Path) -> bool:
    """A script of the site, or one that its pattern matches, is or calls a hook in `directory`."""
    for path in map(Path, glob(program)):  # noqa: PTH207 - as Slurm does
        try:
            if path.resolve().parent == directory.resolve():
                return True
            if f"{directory}/" in path.read_text("utf-8", errors="replace"):
                return True
        except OSError:
            continue
    return False


def _program(line: Line) -> Path:
    return Path(line.value)


def _is_added(line: Line, directory: Path) -> bool:
    if line.key in PARAMETERS:
        return _program(line) in (directory / PARAMETERS[line.key], with_site(line.key, directory))
    return line.value.casefold() == ALONE[line.key].casefold()


def _site_lines(conf: SlurmConf, key: str, directory: Path) -> list[Line]:
    return [line for line in conf.active(key) if not _is_added(line, directory)]


def _wanted(key: str, site: list[Line], directory: Path) -> str:
    """Value of the one line that counts."""
    if key in PARAMETERS:
        if not site:
            return str(directory / PARAMETERS[key])
        return site[-1].value if calls(site[-1].value, directory) else str(with_site(key, directory))
    if key == FLAGS and site and not _has_alloc(site[-1].value):
        if re.search(r"[\s\"#\\]", site[-1].value):
            raise SlurmConfError(f"{site[-1]}: blanks, quotes, # or \\ between flags; write them with commas alone")
        return f"{site[-1].value},{ALONE[FLAGS]}"
    return site[-1].value if site else ALONE[key]


def _has_alloc(flags: str) -> bool:
    return bool(ALLOC_FLAGS & set(flags.casefold().split(",")))


def merged(conf: SlurmConf, directory: Path) -> dict[Path, list[str]]:
    """File → its new physical lines, for those that change. Raises SlurmConfError."""
    texts = {file: list(lines) for file, lines in conf.texts.items()}
    end = []
    for key in (*PARAMETERS, *ALONE):
        active, site = conf.active(key), _site_lines(conf, key, directory)
        new = f"{key}={_wanted(key, site, directory)}{ADDED}\n"
        if not active:
            # The site's health check never ran without an interval, and it may drain nodes.
            if key != INTERVAL or not _site_lines(conf, "HealthCheckProgram", directory):
                end.append(new)
        elif conf.several_count(key):
            if len(site) == len(active) and not any(calls(line.value, directory) for line in site):
                hook = f"{key}={directory / PARAMETERS[key]}{ADDED}\n"
                texts[site[0].file][site[0].first] = hook + texts[site[0].file][site[0].first]
        else:
            kept = _kept(key, active, site, directory)
            for line in active:
                if line != kept:
                    _set_aside(texts[line.file], line, delete=line not in site)
            if kept is None:
                last = site[-1].first + site[-1].count - 1
                texts[site[-1].file][last] = _ended(texts[site[-1].file][last]) + new
    if end:
        texts[conf.main] = [*_closed(texts[conf.main]), *end]
    changed = {file: _physical_lines("".join(lines)) for file, lines in texts.items() if lines != conf.texts[file]}
    _check_others(conf, changed)
    return changed


def _closed(lines: list[str]) -> list[str]:
    """The next line is not joined to the last of these."""
    if not lines:
        return []
    is_continued = _CONTINUED.search(_COMMENT.sub(r"\1", lines[-1]))
    return [*lines[:-1], _ended(lines[-1]), *(["\n"] if is_continued else [])]


def _check_others(conf: SlurmConf, changed: Mapping[Path, list[str]]) -> None:
    for file, lines in changed.items():
        if _of_others(lines) != _of_others(conf.texts[file]):
            raise SlurmConfError(f"{file}: Slurm would read other lines differently after the merge; merge by hand")


def _of_others(lines: list[str]) -> list[str]:
    """What Slurm reads in the lines that are not about hooks."""
    read_as = [logical for _, _, logical, set_aside in _logical_lines(lines) if not set_aside]
    found = ((logical, _KEY_VALUE.match(logical)) for logical in read_as if not _BLANKS.fullmatch(logical))
    hooks = {name.casefold() for name in (*PARAMETERS, *ALONE)}
    return [logical.rstrip() for logical, one in found if one is None or one[1].casefold() not in hooks]


def _kept(key: str, active: list[Line], site: list[Line], directory: Path) -> Line | None:
    """The line that counts from now on; None: a new one."""
    if site:
        return site[-1] if site[-1].value == _wanted(key, site, directory) else None
    both = [line for line in active if key in PARAMETERS and _program(line) == with_site(key, directory)]
    return (both or active)[-1]


def _set_aside(texts: list[str], line: Line, delete: bool) -> None:
    for index in range(line.first, line.first + line.count):
        texts[index] = "" if delete else SET_ASIDE + texts[index]


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def problems(conf: SlurmConf, directory: Path) -> list[str]:
    """Lines that override a site's, and what the hooks lack. Raises SlurmConfError."""
    found = []
    for key, script in PARAMETERS.items():
        active = conf.active(key)
        counting = active if conf.several_count(key) else active[-1:]
        if not any(_is_added(line, directory) or calls(line.value, directory) for line in counting):
            named = f"names {counting[-1].value}, which has to call" if counting else "does not name"
            found.append(f"{conf.main}: {key} {named} {directory / script}")
    for key in (*PARAMETERS, *ALONE):
        active = conf.active(key)
        if not conf.several_count(key):
            found += [
                f"{active[-1]} overrides {line}: Slurm uses the last"
                for line in active[:-1]
                if line.value.casefold() != active[-1].value.casefold()
            ]
    if not any(_has_alloc(line.value) for line in conf.active(FLAGS)[-1:]):
        found.append(f"{conf.main}: {FLAGS} lacks Alloc: the Prolog runs only at a job's first step on each node")
    if not any(line.value.strip("0") for line in conf.active(INTERVAL)[-1:]):
        found.append(
            f"{conf.main}: {INTERVAL} is 0, so slurmd never runs HealthCheckProgram: set {INTERVAL}={ALONE[INTERVAL]}, "
            "which also starts a HealthCheckProgram of the site"
        )
    return found
