"""The agent's log: one event, one line, `key=value`, on stderr, which systemd's journal collects."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

log = logging.getLogger("understudy.agent")

UNKNOWN_NAMES_MAX = 64


def fields(**values: object) -> dict[str, object]:
    """Keys of the event, for `extra=`: `log.info("report_refused", extra=fields(status=400))`."""
    return {"fields": values}


class UnknownNames:
    """Logs each name of what only another release sends once in the life of the agent."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._logged: set[str] = set()

    def note(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._logged and len(self._logged) < UNKNOWN_NAMES_MAX:
                self._logged.add(name)
                log.warning(self._event, extra=fields(what=name))


class KeyValueFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        pairs: dict[str, object] = {"timestamp": at, "level": record.levelname.lower(), "event": record.getMessage()}
        pairs |= getattr(record, "fields", {})
        if record.exc_info:
            pairs["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


def set_up_logging(level: str = "INFO") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore"):  # they log a line for every report
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    # users and strangers choose what stands in it: nothing that is no letter reaches a terminal
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else json.dumps(text)
