"""The notice that this machine is about to be taken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from perdure.checkpoint import (
    Checkpointer,
    deadline,
    on_notice,
    preempted,
    preemption,
)
from support.helpers.timing import scaled


class Clock:
    """Monotonic seconds of the library, moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(preemption, "time", clock)
    return clock


def test_preempted__false_without_an_agent() -> None:
    assert preempted() is False
    assert deadline() is None


def test_preempted__true_within_50_ms(run_dir: Path, clock: Clock) -> None:
    assert preempted() is False
    (run_dir / "notice.json").write_text(json.dumps({"deadline": 1800000120.5, "reason": "PREEMPTION_NOTICE"}))
    clock.now += 0.04
    assert preempted() is False  # the last check is still cached
    clock.now += 0.02
    assert preempted() is True
    assert deadline() == 1800000120.5


def test_on_notice__calls_once_with_the_deadline(run_dir: Path, tmp_path: Path) -> None:
    deadlines: list[float | None] = []
    called = threading.Event()
    checkpointer = Checkpointer(tmp_path / "c")
    checkpointer.on_notice(lambda until: (deadlines.append(until), called.set()))
    assert not called.wait(0.3)
    (run_dir / "new").write_text(json.dumps({"deadline": 1800000120.5}))
    (run_dir / "new").rename(run_dir / "notice.json")  # as the agent does: never half of it
    assert called.wait(scaled(10))
    assert not threading.Event().wait(0.3)
    assert deadlines == [1800000120.5]


def test_on_notice__logs_a_failing_function(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run_dir / "notice.json").write_text("{}")
    called = threading.Event()

    def fail(until: float | None) -> None:
        called.set()
        raise KeyError("mine")

    on_notice(fail)
    assert called.wait(scaled(10))
    until = time.monotonic() + scaled(10)
    while "mine" not in caplog.text and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert "the function registered with on_notice failed" in caplog.text


def test_on_notice__cancelled_function_is_not_called(run_dir: Path) -> None:
    deadlines: list[float | None] = []
    stop = on_notice(deadlines.append)
    stop()
    (run_dir / "notice.json").write_text("{}")
    threading.Event().wait(0.4)
    assert deadlines == []


def test_preempted__checks_the_file_at_intervals(run_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = []
    monkeypatch.setattr(preemption.os.path, "exists", lambda path: checks.append(path) or False)
    for _ in range(1000):
        preempted()
        clock.now += 0.001
    assert 15 <= len(checks) <= 21


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"deadline": null}', '{"deadline": "soon"}'])
def test_deadline__none_if_the_notice_has_none(run_dir: Path, content: str) -> None:
    (run_dir / "notice.json").write_text(content)
    assert preempted() is True
    assert deadline() is None


def test_sigterm__first_is_a_notice_and_second_ends_the_program() -> None:
    program = """
        import os, signal, sys
        from perdure.checkpoint import preempted
        assert not preempted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert preempted()
        print("saved", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        print("still here")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert (done.stdout, done.returncode) == ("saved\n", -signal.SIGTERM), done.stderr


def run(program: str, **environment: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.returncode


@pytest.mark.parametrize("order", ["before", "after"])
def test_sigterm__handler_of_the_program_runs_as_well(order: str) -> None:
    install = 'signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))'
    ask = "assert not preempted()"
    first, second = (install, ask) if order == "before" else (f"{ask}; {install}", ask)
    program = f"""
        import os, signal
        from perdure.checkpoint import preempted
        {first}
        {second}
        os.kill(os.getpid(), signal.SIGTERM)
        assert preempted()
    """
    assert run(program) == ("mine\n", 0)


def test_sigterm__handler_that_calls_the_one_before_it_is_called_once() -> None:
    program = """
        import os, signal
        from perdure.checkpoint import preempted
        preempted()
        before = signal.getsignal(signal.SIGTERM)
        def mine(*args):
            print("mine", flush=True)
            before(*args)
        signal.signal(signal.SIGTERM, mine)
        preempted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert preempted()
    """
    assert run(program) == ("mine\n", 0)


def test_sigterm__ends_a_program_that_saves_and_never_asks(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from perdure.checkpoint import Checkpointer
        from perdure.checkpoint.folders import Folders
        with Checkpointer({str(tmp_path / "c")!r}, every=1) as checkpointer:
            checkpointer.should_save(1)
            checkpointer.save(1, [1])
            checkpointer.wait()
            with Folders({str(tmp_path / "f")!r}).saving(1) as path:
                open(path + "/x", "w").write("x")
            print("saved", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            print("still here")
    """
    assert run(program) == ("saved\n", -signal.SIGTERM)


@pytest.mark.parametrize(("environment", "code"), [({"SLURM_JOB_ID": "7"}, 143), ({}, -signal.SIGUSR1)])
def test_sigusr1__is_a_notice_on_slurm_only(environment: dict[str, str], code: int) -> None:
    program = """
        import os, signal
        from perdure.checkpoint import exit_preempted, preempted
        preempted()
        os.kill(os.getpid(), signal.SIGUSR1)
        if preempted():
            exit_preempted()
    """
    assert run(program, **environment) == ("", code)


def test_sigterm__ends_forked_processes_at_once() -> None:
    """Workers of multiprocessing are ended by SIGTERM: to them it is no notice."""
    program = """
        import multiprocessing, signal, time
        from perdure.checkpoint import preempted
        signal.signal(signal.SIGTERM, mine := lambda *_: print("mine", flush=True))
        preempted()
        fork = multiprocessing.get_context("fork")
        def say(ready):
            ready.put(signal.getsignal(signal.SIGTERM) is mine)
        ready = fork.Queue()
        child = fork.Process(target=say, args=(ready,))
        child.start()
        print(ready.get())
        child.join()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        preempted()
        worker = fork.Process(target=time.sleep, args=(600,))
        worker.start()
        worker.terminate()
        worker.join(30)
        print(worker.exitcode)
        worker.kill()
        import os
        os.kill(os.getpid(), signal.SIGTERM)
        print(preempted())
    """
    assert run(program) == ("True\n-15\nTrue\n", 0)
