"""A notice: something of which people are notified, once, and of whose end they are notified. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.config import Importance


class NoticeSource(StrEnum):
    """What a notice was made from. Together with the number of that row it is its key."""

    INCIDENT = "incident"
    TICKET = "ticket"
    BREAKER = "breaker"  # the decision that opened it
    APPROVAL = "approval"  # a recovery that awaits approval
    MOVE = "move"  # a recovery that moves or restarts a gang, for the job's owner
    STOPPED = "stopped"  # an incident of a gang, for the job's owner


class Stage(StrEnum):
    """What became of it. A receiver gets a new version of its message when this changes."""

    OPEN = "open"
    RECOVERED = "recovered"  # the gangs run again; the node is not in service yet
    FAILED = "failed"  # a recovery failed
    OVER = "over"
    REPORTED = "reported"  # there is no end to wait for


ENDED = (Stage.OVER, Stage.REPORTED)


@dataclass(frozen=True, slots=True)
class Notice:
    """`page`: path below the dashboard. `user`: the owner it is for; empty: it is for operators."""

    source: NoticeSource
    number: int
    importance: Importance
    stage: Stage
    title: str
    text: str
    about: tuple[str, ...]
    at: float
    page: str = ""
    user: str = ""
    over_at: float | None = None
    needs: str = ""  # why a person is needed
    id: int = 0  # in the database

    @property
    def key(self) -> str:
        return f"{self.source.value} {self.number}"


@dataclass(frozen=True, slots=True)
class Message:
    """What one receiver gets about some notices: one message, with versions. `user`: the owner it goes to.

    `revision` is that of the newest version, `accepted` of the newest that was taken; `shown`: what it is about.
    """

    receiver: str
    user: str
    notices: tuple[int, ...]
    made_at: float
    due_at: float
    id: int = 0
    title: str = ""  # of the first version: it stays, so that mail programs and pagers know the message again
    shown: str = ""
    importance: Importance = Importance.INFO
    revision: int = 0
    accepted: int = 0
    tries: int = 0  # of the newest version
    accepted_at: float | None = None  # the newest version that was taken
    error: str = ""
    closed: bool = False  # nothing more is to be sent

    @property
    def is_new(self) -> bool:
        """The receiver has taken no version yet."""
        return self.accepted == 0

    @property
    def is_waiting(self) -> bool:
        return not self.closed and self.revision > self.accepted
