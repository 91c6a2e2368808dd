"""`perdure completion`."""

from __future__ import annotations

import click

INSTALL_HINTS = {
    "bash": "# To enable it in every shell:  perdure completion bash >> ~/.bashrc",
    "zsh": "# To enable it in every shell:  perdure completion zsh >> ~/.zshrc",
    "fish": "# To enable it in every shell:  perdure completion fish > ~/.config/fish/completions/perdure.fish",
}


@click.command(
    epilog="""\b
Examples:
  perdure completion bash >> ~/.bashrc
  eval "$(perdure completion zsh)"       for this shell only
"""
)
@click.argument("shell", type=click.Choice(list(INSTALL_HINTS)))
def completion(shell: str) -> None:
    """Print a script for tab completion of commands, options and values such as job IDs."""
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(INSTALL_HINTS[shell])
    click.echo(kind(root, {}, "perdure", "_PERDURE_COMPLETE").source())
