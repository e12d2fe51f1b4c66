"""What keeps a fault of ours out of the training: it is logged once and the method does nothing."""

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

_complained: set[tuple[str, str]] = set()


def complain_once(topic: str, message: str, *arguments: object) -> None:
    """One warning for each topic and wording in the life of this process: training logs are long enough."""
    if (topic, message) not in _complained:
        _complained.add((topic, message))
        log.warning("understudy: " + message, *arguments)


def quiet(method: Callable[Given, Result]) -> Callable[Given, Result | None]:
    """The method, but None where it would raise."""

    @functools.wraps(method)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end what the training relies on
            complain_once(method.__qualname__, "%s stumbled, and the training goes on: %r", method.__qualname__, error)
            return None

    return call
