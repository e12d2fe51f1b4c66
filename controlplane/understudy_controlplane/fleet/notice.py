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
    LAUNCH = "launch"  # the first launch of a job that its program ended, for the owner
    XID = "xid"  # the decision that a program caused an error of a GPU, for its owner
    LEMON = "lemon"  # the decision that a node fails repeatedly
    REPORT = "report"  # of a week, counted from 1970-01-05


class Stage(StrEnum):
    """What became of it. A receiver gets a new version of its message when this changes."""

    OPEN = "open"
    RECOVERED = "recovered"  # the gangs run again; the node is not in service yet
    FAILED = "failed"  # a recovery failed
    OVER = "over"
    REPORTED = "reported"  # there is no end to wait for


ENDED = (Stage.OVER, Stage.REPORTED)


class MessageStatus(StrEnum):
    """Status of the newest version of a message."""

    WAITING = "waiting"  # until it is due
    FAILING = "failing"  # it was not accepted, and is tried again
    SENT = "sent"
    GIVEN_UP = "given_up"  # no receiver has accepted it, and it is tried no more


@dataclass(frozen=True, slots=True)
class Notice:
    """`page`: path below the dashboard. `user`: the owner it is for; empty: it is for operators. `mail`: the address
    that the owner chose for this job; empty: none.
    """

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
    mail: str = ""
    id: int = 0  # in the database

    @property
    def key(self) -> str:
        return f"{self.source.value} {self.number}"


@dataclass(frozen=True, slots=True)
class Message:
    """What one receiver gets about some notices: one message, with versions. `user`: the owner it goes to, `mail`: at
    this address, where they chose one.

    `revision` is that of the newest version, `accepted` of the newest that was taken; `shown`: what it is about.
    """

    receiver: str
    user: str
    notices: tuple[int, ...]
    made_at: float
    due_at: float
    mail: str = ""
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

    @property
    def status(self) -> MessageStatus:
        if self.accepted and self.accepted >= self.revision:
            return MessageStatus.SENT
        if self.closed:
            return MessageStatus.GIVEN_UP
        return MessageStatus.FAILING if self.error else MessageStatus.WAITING
