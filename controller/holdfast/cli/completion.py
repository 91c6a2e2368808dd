"""`holdfast completion`."""

from __future__ import annotations

import click

INSTALL = {
    "bash": "# To have it in every shell:  holdfast completion bash >> ~/.bashrc",
    "zsh": "# To have it in every shell:  holdfast completion zsh >> ~/.zshrc",
    "fish": "# To have it in every shell:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
}


@click.command(
    epilog="""\b
Examples:
  holdfast completion bash >> ~/.bashrc
  eval "$(holdfast completion zsh)"       for this shell alone
"""
)
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print a script that completes holdfast's commands and options with the Tab key."""
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(INSTALL[shell])
    click.echo(kind(root, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
