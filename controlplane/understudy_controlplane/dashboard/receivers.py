"""Who is notified of what, as the configuration says, and whether messages reach them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.config import OWNERS, Config, Importance, OwnersWhen
from understudy_controlplane.live.pulse import Pulse

GETS = {
    Importance.PAGE: "what needs a person",
    Importance.WARNING: "what failed, and what needs a person",
    Importance.INFO: "everything",
}


@dataclass(frozen=True, slots=True)
class ReceiverRow:
    name: str
    kind: str
    gets: str
    waiting: int
    problem: str


def receivers(config: Config, pulse: Pulse) -> list[ReceiverRow]:
    found = [
        _row(
            name,
            one.kind.value,
            GETS[one.least] + ("; the weekly report" if one.weekly_report else ""),
            pulse,
        )
        for name, one in config.notify.receivers.items()
    ]
    if config.notify.owners_url_file is not None or config.notify.owners_url_files:
        asked = config.notify.owners_when is OwnersWhen.MAIL_TYPE
        gets = "what happened to their jobs" + (", where they ask Slurm for mail" if asked else "")
        found.append(_row(OWNERS, "owners of jobs", gets, pulse))
    if config.notify.heartbeat_url_file is not None:
        every = f"a sign of life every {config.notify.heartbeat_seconds:g} s"
        found.append(_row("heartbeat", "heartbeat", every, pulse))
    return found


def _row(name: str, kind: str, gets: str, pulse: Pulse) -> ReceiverRow:
    problem = next((one for one in pulse.notify_problems if one.startswith(f"no notification reaches {name}: ")), "")
    return ReceiverRow(name, kind, gets, pulse.messages_waiting.get(name, 0), problem)
