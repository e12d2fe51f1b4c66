"""Keeps the hook's own faults out of the training: a fault is logged once, and the method returns None."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import ParamSpec

    Given = ParamSpec("Given")  # Python 3.9 has none

log = logging.getLogger("understudy.train")

Result = TypeVar("Result")

_warned: set[tuple[str, str]] = set()


def warn_once(topic: str, message: str, *arguments: object) -> None:
    """One warning for each topic and wording in the life of this process: training logs are long enough."""
    if (topic, message) not in _warned:
        _warned.add((topic, message))
        log.warning("understudy: " + message, *arguments)


def never_raise(method: Callable[Given, Result]) -> Callable[Given, Result | None]:
    """The method; it returns None where it would raise."""

    @functools.wraps(method)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a fault in the hook must not end the training
            warn_once(method.__qualname__, "%s failed, and the training continues: %r", method.__qualname__, error)
            return None

    return call
