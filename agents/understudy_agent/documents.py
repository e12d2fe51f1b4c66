"""`understudy help TOPIC`: the documents of this release, of which the packages hold a copy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path

PACKAGED = Path(__file__).with_name("documents")
CHECKOUT = Path(__file__).resolve().parents[2] / "docs"

_HEADING = re.compile(r"^(#+) +(.*)$")
_SAME_PAGE = re.compile(r"\]\(#([\w-]+)\)")
_IMAGE = re.compile(r"^!\[.*?\]\(.*?\)\n+", re.MULTILINE)


def topics(folder: Path | None = None) -> dict[str, Path]:
    """Name → document, such as "runbooks"."""
    place = folder or (PACKAGED if PACKAGED.is_dir() else CHECKOUT)
    return {file.stem: file for file in sorted(place.glob("*.md"))}


def document(topic: str, section: str = "") -> str:
    """The text of a document, or of a section, what is below it, and the sections of the document to which it leads.

    Raises KeyError with what there is instead.
    """
    found = topics()
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name not in found:
        raise KeyError(_unknown("document", name, found))
    text = _IMAGE.sub("", found[name].read_text("utf-8"))
    if not section:
        return text
    wanted = _section(text, section)
    return "\n".join([wanted, *(_section(text, anchor) for anchor in _SAME_PAGE.findall(wanted))])


def index() -> str:
    titles = {name: file.read_text("utf-8").partition("\n")[0].lstrip("# ") for name, file in topics().items()}
    width = max(map(len, titles), default=0)
    return "".join(f"  {name:{width}}  {title}\n" for name, title in titles.items())


def _section(text: str, wanted: str) -> str:
    lines = text.splitlines(keepends=True)
    headings = [(at, len(found[1]), found[2]) for at, line in enumerate(lines) if (found := _HEADING.match(line))]
    exact = [(at, depth) for at, depth, title in headings if _key(title) == _key(wanted)]
    part = _key(wanted).replace("-", "")
    named = exact or [(at, depth) for at, depth, title in headings if part in _key(title).replace("-", "")]
    if not named:
        raise KeyError(_unknown("section", wanted, [title for _, _, title in headings]))
    begin, depth = named[0]
    end = next((at for at, other, _ in headings if at > begin and other <= depth), len(lines))
    return "".join(lines[begin:end])


def _key(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    there = f"there are {', '.join(known)}" if known else "wheels bring none: see docs/ of a checkout"
    return f"there is no {what} {name}; {f'did you mean {near[0]}?' if near else there}"
