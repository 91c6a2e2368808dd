"""`perdure jobs exec`."""

from __future__ import annotations

import contextlib
import os

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import Failure

EXIT_LOST = 255  # as ssh
_STDOUT_TAG = 1


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  perdure jobs exec 7 -- nvidia-smi
  perdure jobs exec 7 --rank 1 -- 'tail -n 50 train.log | grep loss'
  perdure jobs exec -t 7 -- bash            an interactive shell
  perdure jobs exec 7 -- cat /tmp/profile.json > profile.json
""",
)
@click.argument("name", metavar="JOB|CLUSTER", shell_complete=suggestions.nodes)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The node, if there are several. Default: 0.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal, for shells and editors.")
def exec_command(name: str, words: tuple[str, ...], rank: int | None, tty: bool) -> None:
    """Run a command on a machine of a job, in the job's environment and folder, or on one of a cluster.

    One word is a script for bash; several are a program and its arguments. Standard input is sent to the command. The
    exit code is the command's, or 255 if the connection is lost.
    """
    from perdure.agent.link.websocket import Disconnected
    from perdure.cli.client import connect
    from perdure.cli.jobs.enter import terminal
    from perdure.cli.jobs.enter.names import with_rank
    from perdure.cli.jobs.enter.stream import lost, open_stream
    from perdure.sdk.connection.client import ConnectionLost

    client = connect()
    argv = ["bash", "-c", words[0]] if len(words) == 1 else list(words)
    request = terminal.terminal_request() if tty else {}
    stream = open_stream(client, with_rank(name, rank), "exec", argv=argv, **request)

    def write(data: bytes) -> None:
        terminal.write_fully(terminal.STDOUT if data[0] == _STDOUT_TAG else terminal.STDERR, data[1:])

    try:
        with terminal.raw_terminal() if tty else contextlib.nullcontext():
            code = terminal.connect_streams(stream, write, clean=client.clean, signals=not tty)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), terminal.STDOUT)  # nothing is flushed into the closed pipe at exit
        code = 141
    except (Disconnected, ConnectionLost) as error:
        raise Failure(str(lost(client, error)), EXIT_LOST) from error
    raise SystemExit(code)
