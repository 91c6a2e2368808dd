"""Ctrl-C while the command is still importing: exit code 130 and no output.

Before our first line runs, Python itself starts and imports its site packages. A `KeyboardInterrupt` may be printed in
that time; these tests do not cover it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from support.helpers.timing import scaled

Start = Callable[..., tuple[subprocess.Popen[str], TextIO]]  # (**environ)


# Python imports this at start-up. `perdure.cli.main` is the first import after our signal handler is installed.
SITE = """
import os, sys
import_count = None
def on_audit_event(event, arguments):
    global import_count
    if event != "import":
        return
    if arguments[0] == "perdure.cli.main" and import_count is None:
        import_count = 0
        os.write(int(os.environ["STATUS_FD"]), b"guarded")
    if import_count is not None:
        import_count += 1
        if import_count == int(os.environ.get("INTERRUPT_AT", "-1")):
            os.write(int(os.environ["STATUS_FD"]), b", interrupted")
            os.kill(os.getpid(), 2)
sys.addaudithook(on_audit_event)
"""
# Positions among the hundred or so imports: the first, the last and some between.
IMPORTS = (1, 2, 3, 5, 10, 20, 40, 60, 80, 100, 120, 140)
DELAYS_S = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts `perdure jobs queue` with a controller that never answers.

    It returns the process and a pipe with the status messages of `SITE`.
    """
    (tmp_path / "sitecustomize.py").write_text(SITE)
    started = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def start(**environ: str) -> tuple[subprocess.Popen[str], TextIO]:
            read, write = os.pipe()
            environ = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
                "PERDURE_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
                "PERDURE_TOKEN": "user-token",
                "STATUS_FD": str(write),
                **environ,
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "perdure.cli", "jobs", "queue"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=[write],
            )
            os.close(write)
            status_pipe = os.fdopen(read)
            started.append((process, status_pipe))
            return process, status_pipe

        yield start
    for process, status_pipe in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
        status_pipe.close()


@pytest.mark.parametrize("at", IMPORTS)
def test_interrupt__at_any_import_ends_without_output(start: Start, at: int) -> None:
    process, status_pipe = start(INTERRUPT_AT=str(at))
    out, err = process.communicate(timeout=scaled(60))
    assert status_pipe.read() == "guarded, interrupted"
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_interrupt__at_any_time_after_the_handler_ends_without_output(start: Start, delay_s: float) -> None:
    process, status_pipe = start()
    assert status_pipe.read(len("guarded")) == "guarded"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=scaled(60))
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_interrupt__at_process_start_ends_at_once(start: Start, delay_s: float) -> None:
    """Without output, unless the signal arrived before our handler was installed."""
    process, status_pipe = start()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.send_signal(signal.SIGINT)
    lost = None
    try:
        out, err = process.communicate(timeout=scaled(10))
    except subprocess.TimeoutExpired as running:
        lost = running.stderr or b""
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=scaled(60))
    if lost is not None:  # before our handler is installed, Python itself loses an interrupt in a callback, and says so
        assert b"Exception ignored in" in lost
        assert process.returncode != 0
        return
    if status_pipe.read() == "guarded":
        assert (process.returncode, out, err) == (130, "", "")
    else:
        assert process.returncode != 0


def test_interrupt__is_ignored_if_the_parent_ignores_it(tmp_path: Path) -> None:
    """A shell starts background processes this way."""
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, IGNORING_INTERRUPTS],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
        env={**os.environ, "PERDURE_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("perdure ")


IGNORING_INTERRUPTS = """
import os, sys
sys.addaudithook(lambda event, arguments: event == "import" and arguments[0] == "click" and os.kill(os.getpid(), 2))
sys.argv = ["perdure", "--version"]
from perdure.cli.entry import main
main()
"""
