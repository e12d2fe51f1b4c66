"""`understudy completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from understudy_agent.commands import COMPLETION_VARIABLE


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion of a shell: `source <(understudy completion bash)`."""
    from understudy_controlplane.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "understudy", COMPLETION_VARIABLE).source())
