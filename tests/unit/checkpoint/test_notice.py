"""What passes between the agent and the library: the notice one way, the journal the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from perdure.checkpoint import (
    Checkpointer,
    deadline,
    load_checkpoint,
    notice,
    on_notice,
    preempted,
    save_checkpoint,
)


@pytest.fixture
def clock(monkeypatch):
    """Monotonic seconds of the library, moved by hand."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(notice, "time", clock)
    return clock


def test_without_an_agent_there_is_no_notice():
    assert preempted() is False
    assert deadline() is None


def test_notice_is_seen_within_50_ms(run_dir, clock):
    assert preempted() is False
    (run_dir / "notice.json").write_text(json.dumps({"deadline": 1800000120.5, "reason": "PREEMPTION_NOTICE"}))
    clock.now += 0.04
    assert preempted() is False  # the last look is still good
    clock.now += 0.02
    assert preempted() is True
    assert deadline() == 1800000120.5


def test_a_function_hears_of_the_notice_once_with_its_deadline(run_dir, tmp_path):
    heard, told = [], threading.Event()
    checkpointer = Checkpointer(tmp_path / "c")
    checkpointer.on_notice(lambda until: (heard.append(until), told.set()))
    assert not told.wait(0.3)
    (run_dir / "new").write_text(json.dumps({"deadline": 1800000120.5}))
    (run_dir / "new").rename(run_dir / "notice.json")  # as the agent does: never half of it
    assert told.wait(10)
    assert not threading.Event().wait(0.3)
    assert heard == [1800000120.5]


def test_a_function_that_fails_at_a_notice_is_told_of_and_ends_nothing(run_dir, caplog):
    (run_dir / "notice.json").write_text("{}")
    asked = threading.Event()

    def fail(until):
        asked.set()
        raise KeyError("mine")

    on_notice(fail)
    assert asked.wait(10)
    until = time.monotonic() + 10
    while "mine" not in caplog.text and time.monotonic() < until:
        threading.Event().wait(0.01)
    assert "the function to be called at a notice failed" in caplog.text


def test_who_no_longer_waits_is_not_called(run_dir):
    heard = []
    stop = on_notice(heard.append)
    stop()
    (run_dir / "notice.json").write_text("{}")
    threading.Event().wait(0.4)
    assert heard == []


def test_asking_often_looks_seldom(run_dir, clock, monkeypatch):
    looks = []
    monkeypatch.setattr(notice.os.path, "exists", lambda path: looks.append(path) or False)
    for _ in range(1000):
        preempted()
        clock.now += 0.001
    assert 15 <= len(looks) <= 21


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"deadline": null}', '{"deadline": "soon"}'])
def test_notice_without_a_time_is_still_a_notice(run_dir, content):
    (run_dir / "notice.json").write_text(content)
    assert preempted() is True
    assert deadline() is None


def journal(run_dir):
    return [json.loads(line) for line in (run_dir / "checkpoints.jsonl").read_text().splitlines()]


def test_saves_and_loads_are_told(save_dir, run_dir):
    save = save_checkpoint(save_dir)(lambda step: (save_dir / f"{step}.pt").write_bytes(b"x"))
    save(1)
    save(2)
    load_checkpoint(save_dir)(lambda step: step)()
    lines = journal(run_dir)
    assert [(line["step"], line["state"]) for line in lines] == [(1, "committed"), (2, "committed"), (2, "loaded")]
    assert all(set(line) == {"step", "state", "path", "at"} for line in lines)
    assert all(os.path.exists(line["path"]) and line["path"].startswith(str(save_dir)) for line in lines)
    assert lines[0]["at"] <= lines[1]["at"] <= lines[2]["at"]


def test_files_of_other_code_are_told_too(save_dir, run_dir):
    (save_dir / "model_4.pt").write_bytes(b"x")
    load_checkpoint(save_dir)(lambda step: step)()
    assert [(line["step"], line["state"], line["path"]) for line in journal(run_dir)] == [(4, "loaded", str(save_dir))]


def test_bucket_that_is_a_link_is_durable_at_once(tmp_path, run_dir):
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    link = tmp_path / "checkpoint"
    link.symlink_to(bucket)
    mount = {"path": str(link), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None}
    (run_dir / "mounts.json").write_text(json.dumps([mount]))
    save = save_checkpoint(link / "run")(lambda step: (link / "run" / f"{step}.pt").write_bytes(b"x"))
    save(1)
    assert [(line["step"], line["state"]) for line in journal(run_dir)] == [(1, "committed"), (1, "durable")]
    assert load_checkpoint(link / "run")(lambda step: step)() == 1


def test_agent_that_can_not_be_told_stops_nothing(save_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PERDURE_RUN_DIR", str(tmp_path / "gone"))
    save_checkpoint(save_dir)(lambda step: (save_dir / f"{step}.pt").write_bytes(b"x"))(1)
    assert load_checkpoint(save_dir)(lambda step: step)() == 1


def test_sigterm_is_a_notice_and_the_second_one_the_end() -> None:
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
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("saved\n", -signal.SIGTERM), done.stderr


def test_a_program_that_handles_sigterm_itself_is_left_alone() -> None:
    program = """
        import os, signal
        from perdure.checkpoint import preempted
        signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
        preempted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert not preempted()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("mine\n", 0), done.stderr
