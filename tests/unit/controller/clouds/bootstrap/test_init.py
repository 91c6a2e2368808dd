"""The first process of a container, run as a process."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.controller.clouds.base.protocol import Bootstrap
from perdure.controller.clouds.bootstrap.render import init_program, render_boot_program
from support.helpers.timing import scaled

# Starts a process whose parent ends before it, and waits until its adopter has collected it.
LEAVES_AN_ORPHAN = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan == 0:
        time.sleep(0.05)
        os._exit(0)
    os.write(write, str(orphan).encode())
    os._exit(0)
os.wait()
orphan = os.read(read, 20).decode()
until = time.monotonic() + {timeout_s}
while os.path.exists(f"/proc/{{orphan}}") and time.monotonic() < until:
    time.sleep(0.02)
print("collected" if not os.path.exists(f"/proc/{{orphan}}") else "left", flush=True)
"""
WAITS_FOR_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("drained", flush=True), sys.exit(0)))
print("runs", flush=True)
while True:
    time.sleep(0.1)
"""
IS_KILLED_ONCE = """
import os, pathlib, signal
flag = pathlib.Path(os.environ["PERDURE_STATE_DIR"], "killed")
if not flag.exists():
    flag.touch()
    os.kill(os.getpid(), signal.SIGKILL)
print("continues", flush=True)
"""


# Sends SIGTERM to the first process right before it calls a function for the first time.
SIGNALLED = """
import os, signal
function = {function}
def signalled(*arguments):
    {function} = function
    os.kill(os.getpid(), signal.SIGTERM)
    return function(*arguments)
{function} = signalled
"""


@contextmanager
def init(folder: Path, agent: str | None, *, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The init with an agent that has been fetched already; None: there is none, and no controller that has it.

    `before`: what its process runs first.
    """
    digest = "ab" * 32
    if agent is not None:
        (folder / "agent.pyz").write_text(agent)
        digest = hashlib.sha256(agent.encode()).hexdigest()
    bootstrap = Bootstrap("http://127.0.0.1:1", "secret-token", {"agent": digest})
    boot = render_boot_program(bootstrap, 0, PERDURE_STATE_DIR=str(folder))
    program = f"{before}\nexec({init_program()!r})" if before else init_program()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PERDURE_BOOT": boot},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=scaled(30))[0]


def test_init__collects_the_orphans_of_the_workload(tmp_path: Path) -> None:
    with init(tmp_path, LEAVES_AN_ORPHAN.format(timeout_s=scaled(5))) as process:
        assert output_of(process).split() == ["collected"]
        assert process.returncode == 0


def test_init__passes_sigterm_on_and_ends_with_the_agent(tmp_path: Path) -> None:
    with init(tmp_path, WAITS_FOR_SIGTERM) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGTERM)
        assert output_of(process) == "drained\n"
        assert process.returncode == 0


def test_init__starts_an_agent_again_that_was_killed(tmp_path: Path) -> None:
    with init(tmp_path, IS_KILLED_ONCE) as process:
        lines = output_of(process).splitlines()
        assert lines == ["perdure: the agent ended with 137: starting it again", "continues"]
        assert process.returncode == 0


def test_init__ends_with_an_agent_that_cannot_start(tmp_path: Path) -> None:
    with init(tmp_path, "import sys; sys.exit('no such setting')") as process:
        assert output_of(process).splitlines().count("no such setting") == 3
        assert process.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_init__ends_at_once_before_there_is_an_agent(tmp_path: Path, number: signal.Signals) -> None:
    """The kernel would drop the signal of a first process without a handler."""
    with init(tmp_path, None) as process:
        assert process.stdout is not None
        assert "refused" in process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=scaled(30))
        assert process.returncode == 128 + number


def test_init__starts_no_agent_after_a_signal_in_the_pause(tmp_path: Path) -> None:
    """The next agent would not know that its machine ends."""
    with init(tmp_path, IS_KILLED_ONCE) as process:
        assert process.stdout is not None
        assert "starting it again" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert output_of(process) == ""
        assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("function", ["signal.pthread_sigmask", "os.fork"])
def test_init__loses_no_signal_around_the_start_of_the_agent(tmp_path: Path, function: str) -> None:
    with init(tmp_path, WAITS_FOR_SIGTERM, before=SIGNALLED.format(function=function)) as process:
        assert output_of(process) == ""
        assert process.returncode == 128 + signal.SIGTERM


def arguments_of(process: subprocess.Popen[str]) -> list[str]:
    """Of the init and its children."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in (str(process.pid), *children)]


def test_token__is_in_no_argument_before_there_is_an_agent(tmp_path: Path) -> None:
    with init(tmp_path, None) as process:
        assert process.stdout is not None
        assert "refused" in process.stdout.readline()
        arguments = arguments_of(process)
        assert len(arguments) == 2
        assert "secret-token" not in "".join(arguments)


def test_token__is_in_no_argument_of_the_agent(tmp_path: Path) -> None:
    with init(tmp_path, WAITS_FOR_SIGTERM) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        arguments = arguments_of(process)
        assert len(arguments) == 2
        assert "secret-token" not in "".join(arguments)


def test_init__runs_on_old_python() -> None:
    ast.parse(init_program(), feature_version=(3, 9))
    assert len(init_program().encode()) < 8192
