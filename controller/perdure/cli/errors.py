"""Errors as the user sees them: what is wrong, where, what to do, and an exit code; never a traceback."""

from __future__ import annotations

import errno
from typing import IO, Any

import click

from perdure.cli.output.text import printable
from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk.connection.endpoint import ClientError

EXIT_FAILED_COMMAND = 1
EXIT_WRONG_INPUT = 2
_API_PARAMETERS = ("job_id", "node", "ids")


class Failure(click.ClickException):
    """Ends a command with an exit code. `text` is printed on stderr after `Error: `."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILED_COMMAND) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # type: ignore[misc]  # click's own subclasses and users do the same

    @classmethod
    def from_exception(cls, error: Exception) -> Failure:
        """The failure that describes any exception raised by a command."""
        if isinstance(error, ClientError):
            return cls(_without_parameter(error), _exit_code(error))
        from perdure.sdk.spec.problems import TaskError

        if isinstance(error, TaskError):
            return cls(str(error), EXIT_WRONG_INPUT)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cls(f"{error.filename or 'the output'} cannot be written: {error.strerror}\n  free some space")
        return cls(
            f"unexpected error: {type(error).__name__}: {error}\n"
            "  this is a bug in Perdure; set PERDURE_DEBUG=1 to see the traceback"
        )

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{click.style('Error:', fg='red', bold=True)} {printable(self.message)}", file=file, err=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    click.echo(f"{click.style('Warning:', fg='yellow')} {printable(text)}", err=True)


def _without_parameter(error: ClientError) -> str:
    """The text of an error, without the name of a parameter that only the API has: the message names the thing."""
    if error.where not in _API_PARAMETERS:
        return str(error)
    return f"{error.message}\n  {error.fix}" if error.fix else error.message


def _exit_code(error: ClientError) -> int:
    from perdure.sdk.connection.client import ApiError
    from perdure.sdk.files.env_file import EnvFileError
    from perdure.sdk.files.uploads import UploadError

    if isinstance(error, ApiError):
        return {400: EXIT_WRONG_INPUT, 404: EXIT_NOT_FOUND, 413: EXIT_WRONG_INPUT}.get(
            error.status, EXIT_FAILED_COMMAND
        )
    return EXIT_WRONG_INPUT if isinstance(error, EnvFileError | UploadError) else EXIT_FAILED_COMMAND
