"""How errors look on the command line: what, where, what to do, and an exit code. Never a traceback."""

from __future__ import annotations

from typing import IO, Any

import click

from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk.endpoint import ClientError

EXIT_FAILED_COMMAND = 1
EXIT_WRONG_INPUT = 2


class Failure(click.ClickException):
    """The end of a command. `text` is shown on stderr, after `Error: `."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILED_COMMAND) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # click's own subclasses and users do the same

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What the user should read about any exception that left a command."""
        if isinstance(error, ClientError):
            return cls(str(error), _exit_code(error))
        from perdure.sdk.problems import TaskError

        if isinstance(error, TaskError):
            return cls(str(error), EXIT_WRONG_INPUT)
        return cls(
            f"something unexpected happened: {type(error).__name__}: {error}\n"
            "  this is a fault of perdure's; PERDURE_DEBUG=1 shows where it happened"
        )

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{click.style('Error:', fg='red', bold=True)} {self.message}", file=file, err=True)


def warn(text: str) -> None:
    """One warning on stderr."""
    click.echo(f"{click.style('Warning:', fg='yellow')} {text}", err=True)


def _exit_code(error: ClientError) -> int:
    from perdure.sdk.client import ApiError
    from perdure.sdk.envfile import EnvFileError
    from perdure.sdk.uploads import UploadError

    if isinstance(error, ApiError):
        return {400: EXIT_WRONG_INPUT, 404: EXIT_NOT_FOUND, 413: EXIT_WRONG_INPUT}.get(
            error.status, EXIT_FAILED_COMMAND
        )
    return EXIT_WRONG_INPUT if isinstance(error, EnvFileError | UploadError) else EXIT_FAILED_COMMAND
