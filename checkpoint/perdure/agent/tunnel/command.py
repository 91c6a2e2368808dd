"""Sessions that run one command in the environment and the folder of the job, with or without a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from perdure.agent.link.stream_copy import send_all, write_all
from perdure.agent.tunnel.launcher import launch
from perdure.agent.tunnel.session import Session, SessionContext, SessionRefused, change_folder
from perdure.agent.workload.tools.login import LOGIN

STDOUT, STDERR = b"\x01", b"\x02"  # the first byte of every message to the user
SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP, "QUIT": signal.SIGQUIT}
DEFAULT_TERM = "xterm-256color"
# A profile may end the shell: then the trap runs the command all the same.
_WRAPPER = f'trap \'exec "$@"\' EXIT; {LOGIN}trap - EXIT; exec "$@"'
_END_OF_INPUT = b"\x04"


def serve_command(session: Session, request: Mapping[str, Any], context: SessionContext) -> None:
    """Run the command of `request` until it ends, or the session must. Raises SessionRefused, Disconnected."""
    argv, env = [str(word) for word in request["argv"]], dict(context.env())
    has_tty = bool(request.get("tty"))
    try:
        if has_tty:
            env["TERM"] = str(request.get("term") or DEFAULT_TERM)
            process, stdin, sources = _start_on_terminal(session, argv, env, context, request)
        else:
            process, stdin, sources = _start_on_pipes(session, argv, env, context)
    except OSError as error:
        raise SessionRefused(f"the command cannot be started on this machine: {error}") from None
    session.accept()
    given = _Input(session, stdin)

    def on_control(message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "eof" and has_tty:
            given.write(_END_OF_INPUT)
        elif kind == "eof":
            given.close()
        elif kind == "resize" and has_tty and given.is_open:
            _resize(stdin, message)
        elif kind == "signal":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGNALS[message["name"]])

    session.receive(given.write, on_control)
    send_all(session.ws, sources, wake=session.wake, is_over=lambda: process.poll() is not None)
    session.finish(session.await_process())


class _Input:
    """The command's standard input. Once it is closed, its number may belong to another file of the agent."""

    def __init__(self, session: Session, descriptor: int) -> None:
        self._session = session
        self._descriptor = descriptor
        self.is_open = True

    def write(self, data: bytes) -> None:
        """Write `data`, or drop it if nobody reads it any more."""
        if self.is_open and not write_all(self._session.ws, self._descriptor, data):
            self.close()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._session.close_descriptor(self._descriptor)


def _start_on_terminal(
    session: Session, argv: list[str], env: Mapping[str, str], context: SessionContext, request: Mapping[str, Any]
) -> tuple[subprocess.Popen[bytes], int, dict[int, bytes]]:
    master, terminal = pty.openpty()
    session.closes(master)
    try:
        _resize(master, request)
        process = _launch(session, argv, env, context, stdin=terminal, stdout=terminal, stderr=terminal, tty=True)
    finally:
        os.close(terminal)
    os.set_blocking(master, False)
    return process, master, {master: STDOUT}


def _start_on_pipes(
    session: Session, argv: list[str], env: Mapping[str, str], context: SessionContext
) -> tuple[subprocess.Popen[bytes], int, dict[int, bytes]]:
    pipes = [os.pipe() for _ in range(3)]
    (theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err) = pipes
    session.closes(stdin, stdout, stderr)
    try:
        process = _launch(session, argv, env, context, stdin=theirs_in, stdout=theirs_out, stderr=theirs_err)
    finally:
        for descriptor in (theirs_in, theirs_out, theirs_err):
            os.close(descriptor)
    os.set_blocking(stdin, False)
    return process, stdin, {stdout: STDOUT, stderr: STDERR}


def _launch(
    session: Session, argv: list[str], env: Mapping[str, str], context: SessionContext, **streams: Any
) -> subprocess.Popen[bytes]:
    enter = context.enter()
    # What enters a container begins in its root folder.
    begin = change_folder(context.folders) if enter else ""
    command = [*enter, "bash", "-c", begin + _WRAPPER, "perdure", *argv]
    process = launch(command, env=env, folders=context.folders, library=context.library, **streams)
    session.owns(process)
    return process


def _resize(terminal: int, size: Mapping[str, Any]) -> None:
    rows, columns = int(size.get("rows") or 24), int(size.get("columns") or 80)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
