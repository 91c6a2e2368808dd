"""`perdure completion`."""

from __future__ import annotations

import click

INSTALL = {
    "bash": "# To have it in every shell:  perdure completion bash >> ~/.bashrc",
    "zsh": "# To have it in every shell:  perdure completion zsh >> ~/.zshrc",
    "fish": "# To have it in every shell:  perdure completion fish > ~/.config/fish/completions/perdure.fish",
}


@click.command(
    epilog="""\b
Examples:
  perdure completion bash >> ~/.bashrc
  eval "$(perdure completion zsh)"       for this shell alone
"""
)
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print a script that completes perdure's commands and options with the Tab key."""
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(INSTALL[shell])
    click.echo(kind(root, {}, "perdure", "_PERDURE_COMPLETE").source())
