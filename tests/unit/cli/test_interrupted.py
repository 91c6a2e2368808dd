"""Ctrl-C while the command still imports what it needs: it ends with exit code 130, and says nothing.

What happens before the first line of ours is Python's own: it starts, reads its site packages, finds our module. There
a `KeyboardInterrupt` may still be seen, and these tests say nothing of that time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

# Read by Python when it starts. `perdure.cli.main` is the first that ours imports after it has taken the signal.
SITE = """
import os, sys
counted = None
def hear(event, arguments):
    global counted
    if event != "import":
        return
    if arguments[0] == "perdure.cli.main" and counted is None:
        counted = 0
        os.write(int(os.environ["TELL"]), b"guarded")
    if counted is not None:
        counted += 1
        if counted == int(os.environ.get("INTERRUPT_AT", "-1")):
            os.write(int(os.environ["TELL"]), b", interrupted")
            os.kill(os.getpid(), 2)
sys.addaudithook(hear)
"""
# Which imports are the first and the last, and some between; they are some hundred.
IMPORTS = (1, 2, 3, 5, 10, 20, 40, 60, 80, 100, 120, 140)
DELAYS_S = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4)


@pytest.fixture
def start(tmp_path):
    """Starts `perdure jobs queue` with a controller that never answers; returns the process and what it tells."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    started = []
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def start(**environ):
            read, write = os.pipe()
            environ = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
                "PERDURE_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
                "PERDURE_TOKEN": "user-token",
                "TELL": str(write),
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
            tells = os.fdopen(read)
            started.append((process, tells))
            return process, tells

        yield start
    for process, tells in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
        tells.close()


@pytest.mark.parametrize("at", IMPORTS)
def test_at_any_import_it_ends_without_a_word(start, at):
    process, tells = start(INTERRUPT_AT=str(at))
    out, err = process.communicate(timeout=60)
    assert tells.read() == "guarded, interrupted"
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_at_any_moment_after_the_first_line_it_ends_without_a_word(start, delay_s):
    process, tells = start()
    assert tells.read(len("guarded")) == "guarded"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_from_the_start_of_the_process_on_it_ends_at_once(start, delay_s):
    """And without a word, unless the signal came before our first line."""
    process, tells = start()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if tells.read() == "guarded":
        assert (process.returncode, out, err) == (130, "", "")
    else:
        assert process.returncode != 0


def test_who_starts_it_deaf_to_the_signal_is_obeyed(tmp_path):
    """A shell does so with what it runs in the background."""
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, DEAF],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PERDURE_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("perdure ")


DEAF = """
import os, sys
sys.addaudithook(lambda event, arguments: event == "import" and arguments[0] == "click" and os.kill(os.getpid(), 2))
sys.argv = ["perdure", "--version"]
from perdure.cli.start import main
main()
"""
