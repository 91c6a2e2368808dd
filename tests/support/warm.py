"""Daemons forked from a process that has imported all of their code: most of a start's time goes there.

Such a daemon is what `python -m perdure.controller serve --home HOME` is, in a session of its own, with the
environment and the standard error that it is given. Run as a program, this is the parent: a line of JSON for each
daemon that is wanted comes in, and a line for each that begins or ends goes out.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

# What a start imports, beside the daemon itself, only once it runs.
LATER = (
    "perdure.controller.peers",
    "perdure.controller.api.app",
    "perdure.controller.clouds.local.cloud",
    "perdure.controller.clouds.aws.cloud",
    "alembic.command",
    "psycopg",
    "boto3",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)


class Daemon:
    """One that was forked. As far as it goes, it has the methods of `subprocess.Popen`."""

    def __init__(self, pid: int, ended: Future[int]) -> None:
        self.pid = pid
        self._ended = ended

    def poll(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as `Popen` has it. Raises TimeoutError."""
        return self._ended.result(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and that is still to be told
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that daemons are forked from; it ends with this one."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", __file__]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True)
        self._asking = threading.Lock()
        self._begun: list[Future[Daemon]] = []
        self._ends: dict[int, Future[int]] = {}
        threading.Thread(target=self._hear, daemon=True).start()
        atexit.register(self.close)

    def start(self, home: Path, *, environ: Mapping[str, str], stderr: Path) -> Daemon:
        """A daemon on `home` that has this environment and no other."""
        begun: Future[Daemon] = Future()
        with self._asking:
            self._begun.append(begun)
            assert self._process.stdin is not None
            asked = {"home": str(home), "environ": dict(environ), "stderr": str(stderr)}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        return begun.result(120)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" in told:
                self._ends[told["pid"]].set_result(told["code"])
            else:
                self._ends[told["pid"]] = Future()
                self._begun.pop(0).set_result(Daemon(told["pid"], self._ends[told["pid"]]))


_parents: list[Parent] = []


def start(home: Path, *, environ: Mapping[str, str], stderr: Path) -> Daemon:
    """`Parent.start` of the one parent that this process has."""
    if not _parents:
        _parents.append(Parent())
    return _parents[0].start(home, environ=environ, stderr=stderr)


def main() -> None:
    """The parent: until nothing more can be asked of it."""
    import importlib

    importlib.import_module("perdure.controller.daemon")
    for name in LATER:
        importlib.import_module(name)
    gc.freeze()  # what is here is for all of them: none needs a copy
    ends, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([0, ends], [], [])
        if ends in readable:
            os.read(ends, 4096)
            _tell_ends()
        if 0 in readable:
            line = _line()
            if not line:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(json.loads(line), close=(ends, wake))
            _say({"pid": pid})


def _line() -> bytes:
    """Byte by byte: what is read ahead could not be waited for."""
    read = b""
    while not read.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        read += byte
    return read


def _tell_ends() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(told: dict[str, Any]) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


def _become(asked: dict[str, Any], *, close: tuple[int, ...]) -> None:
    """Be the daemon that was asked for, to its end."""
    code = 70
    try:
        os.setsid()
        nothing, stderr = (
            os.open(os.devnull, os.O_RDONLY),
            os.open(asked["stderr"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        )
        for source, target in ((nothing, 0), (stderr, 1), (stderr, 2)):
            os.dup2(source, target)
        for descriptor in (*close, nothing, stderr):
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(asked["environ"])
        from perdure.controller.__main__ import main as serve

        code = serve(["serve", "--home", asked["home"]])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
