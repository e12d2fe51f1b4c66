"""The agent follows one control plane where several answer, and reports all of them.

Two that lead at once are two databases, such as a PostgreSQL that was split, or a second installation. Of one
installation the newest term leads. Of two installations no agent can know which one is right: it stays with the one
that it follows, and both learn from it that there is another.

Nothing is kept on disk, and nothing for longer than a minute: an administrator who moves an agent to another control
plane changes its addresses, or restarts it, and what was installed in place of another one is followed at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from understudy_wire.leader import LEADERS_PER_REPORT_MAX, HeardLeader, leader_of

HEARD_SECONDS = 60.0
"""A control plane that has not answered for this time is taken for gone. A takeover takes five seconds."""


class _Heard(NamedTuple):
    leading: HeardLeader
    at: float


class Leaders:
    def __init__(self) -> None:
        self._follows: _Heard | None = None
        self._heard: dict[str, _Heard] = {}
        """URL → who answered there last."""

    @property
    def term(self) -> int | None:
        """The term of the control plane that is followed; None: none is."""
        return self._follows.leading.term if self._follows is not None else None

    def note(self, header: str, url: str, now: float) -> str:
        """Why an answer with this header is not followed; empty: it is."""
        leading = leader_of(header, url)
        if leading is None:
            return ""
        self._heard[url] = heard = _Heard(leading, now)
        before = self._follows
        if before is not None and now - before.at < HEARD_SECONDS:
            known = before.leading
            if leading.installation != known.installation and url != known.url:
                return f"it is of another installation than the control plane at {known.url}, which answers, too"
            if leading.installation == known.installation and leading.term < known.term:
                return f"the control plane at {known.url} has taken the lead from it"
        self._follows = heard
        return ""

    def note_silent(self, url: str) -> None:
        """It did not answer, so it is not reported. One that is followed still is for a minute: in its short pauses the
        other one would take itself for the only one.
        """
        self._heard.pop(url, None)

    def answering(self, now: float) -> list[HeardLeader]:
        """Those that answer, and did within the last minute, first the one that is followed."""
        heard = [*self._heard.values()]
        if self._follows is not None and self._follows not in heard:
            heard.append(self._follows)
        recent = [one for one in heard if now - one.at < HEARD_SECONDS]
        recent.sort(key=lambda one: (one is not self._follows, -one.at))
        return [one.leading for one in recent[:LEADERS_PER_REPORT_MAX]]

    def keep(self, urls: Collection[str]) -> None:
        """An administrator has changed the addresses: those that are gone are not spoken of."""
        self._heard = {url: one for url, one in self._heard.items() if url in urls}
        if self._follows is not None and self._follows.leading.url not in urls:
            self._follows = None
