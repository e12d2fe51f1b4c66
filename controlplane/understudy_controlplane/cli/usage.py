"""What a command line that click refuses should have been."""

from __future__ import annotations

import re

import click

from understudy_agent.commands import COMMANDS

EXPLAINED = "explain"
NO_SUCH_COMMAND = re.compile(r"No such command '(.*)'\.")


def with_remedy(error: click.UsageError) -> str:
    """The message, in plain words, and what to write instead where that is known."""
    message = error.format_message()
    for kind in ("integer range", "integer"):
        message = message.replace(f"is not a valid {kind}", "is not a whole number")
    for kind in ("float range", "float"):
        message = message.replace(f"is not a valid {kind}", "is not a number")
    if message.startswith("Got unexpected extra argument") and error.ctx is not None:
        takes_reason = any(one.name == "reason" for one in error.ctx.command.params)
        return f'{message}; put the reason in quotes, such as "cable replaced"' if takes_reason else message
    unknown = NO_SUCH_COMMAND.match(message)
    if unknown and error.ctx is not None and not getattr(error, "possibilities", None):  # click's own, since 8.4
        meant = _meant(error.ctx.info_name or "", unknown[1])
        return f"{message.rstrip('.')}; did you mean {meant}?" if meant else message
    return message


def _meant(group: str, word: str) -> str:
    """Noun and verb in the other order, or a verb of `explain` that was left out."""
    if group == EXPLAINED:
        kinds = ("job", "xid") if word.isdecimal() else ("node",)
        return " or ".join(f"`understudy {EXPLAINED} {kind} {word}`" for kind in kinds)
    other = COMMANDS.get(word)
    return f"`understudy {word} {group} {group.upper()}`" if other is not None and group in other.verbs else ""
