"""All commands that click runs. `understudy_agent.commands` lists them; the module of a command is imported when it
runs.
"""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from understudy_agent.commands import COMMANDS, help_text
from understudy_controlplane.cli.usage import with_remedy


class Root(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """None for a program of the agent: `understudy_agent.entry` runs those."""
        command = COMMANDS.get(cmd_name)
        program = command.load() if command is not None and command.is_of_control_plane else None
        return program if isinstance(program, click.Command) else None

    def get_help(self, _ctx: click.Context) -> str:
        return help_text()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            written, message = error.format_message(), with_remedy(error)
            if message == written:
                raise
            raise click.UsageError(message, error.ctx) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Imports no command."""
        return [
            CompletionItem(name, help=one.help) for name, one in COMMANDS.items() if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)


root = Root("understudy")


def main() -> None:
    root(prog_name="understudy")
