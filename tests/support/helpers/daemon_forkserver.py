"""Forks daemons from a process that has imported all of their code, which takes most of a daemon's start time.

Such a daemon equals `python -m perdure.controller serve --home HOME` in a new session, with a given environment and
standard error. Run as a program, this module is the fork server: it reads one JSON line per requested daemon, and
writes one for each that starts or ends.
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

# Modules that a daemon imports only while it starts.
LATER = (
    "perdure.controller.peers.cooperation",
    "perdure.controller.api.app",
    "perdure.controller.clouds.local.cloud",
    "perdure.controller.clouds.aws.cloud",
    "alembic.command",
    "psycopg",
    "boto3",
)


class Daemon:
    """A forked daemon, with some methods of `subprocess.Popen`."""

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
            with contextlib.suppress(ProcessLookupError):  # it ended, which the fork server has not reported yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that daemons are forked from. It ends with this process."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", __file__]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True)
        self._asking = threading.Lock()
        self._begun: list[Future[Daemon]] = []
        self._ends: dict[int, Future[int]] = {}
        threading.Thread(target=self._read_results, daemon=True).start()
        atexit.register(self.close)

    def start(self, home: Path, *, environ: Mapping[str, str], stderr: Path) -> Daemon:
        """Start a daemon on `home` with exactly this environment."""
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

    def _read_results(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reported = json.loads(line)
            if "code" in reported:
                self._ends[reported["pid"]].set_result(reported["code"])
            else:
                self._ends[reported["pid"]] = Future()
                self._begun.pop(0).set_result(Daemon(reported["pid"], self._ends[reported["pid"]]))


_parents: list[Parent] = []


def start(home: Path, *, environ: Mapping[str, str], stderr: Path) -> Daemon:
    """`ForkServer.start` of this process's only fork server."""
    if not _parents:
        _parents.append(Parent())
    return _parents[0].start(home, environ=environ, stderr=stderr)


def main() -> None:
    """Run the fork server until its standard input is closed."""
    import importlib

    importlib.import_module("perdure.controller.daemon")
    for name in LATER:
        importlib.import_module(name)
    from perdure.controller.api.routes.sections import SECTIONS, load_module

    for name in SECTIONS:
        load_module(name)
    tests = str(Path(__file__).parents[2])
    sys.path.append(tests)
    known_computer = importlib.import_module("support.helpers.known_computer")
    sys.path.remove(tests)
    known_computer.remember()
    known_computer.find_out()
    gc.freeze()  # what is here is for all of them: none needs a copy
    ends, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([0, ends], [], [])
        if ends in readable:
            os.read(ends, 4096)
            _report_exits()
        if 0 in readable:
            line = _line()
            if not line:
                return
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _run_daemon(json.loads(line), close=(ends, wake))
            _send({"pid": pid})


def _line() -> bytes:
    """Read a line byte by byte, since `select` does not see data that was read ahead."""
    read = b""
    while not read.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        read += byte
    return read


def _report_exits() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(reported: dict[str, Any]) -> None:
    os.write(1, json.dumps(reported).encode() + b"\n")


def _run_daemon(asked: dict[str, Any], *, close: tuple[int, ...]) -> None:
    """Run the requested daemon in this process, to its end."""
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
