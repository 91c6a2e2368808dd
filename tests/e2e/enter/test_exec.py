"""`perdure jobs exec` on a real daemon and a real node."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import signal
import subprocess
import time

import pytest

from e2e.enter.conftest import Entered, launch
from support.helpers.controllers import Controller
from support.helpers.timing import Deadline, scaled, wait_until


def test_exec__runs_in_the_environment_and_folder_of_the_job(job: Entered) -> None:
    out = job.out("cat made.txt; echo $COLOUR-$SKYPILOT_NODE_RANK-$SKYPILOT_NUM_NODES; env").decode()
    assert out.splitlines()[:2] == ["a file", "blue-0-2"]
    assert "PERDURE_TOKEN" not in out


def test_exec__reaches_every_node(job: Entered) -> None:
    assert job.exec("echo $SKYPILOT_NODE_RANK", options=("--rank", "1")).stdout == b"1\n"
    assert job.run("jobs", "exec", f"{job.name}-worker1", "--", "echo $SKYPILOT_NODE_RANK").stdout == b"1\n"


def test_exec__passes_exit_codes_and_both_outputs(job: Entered) -> None:
    done = job.exec("echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert job.exec("kill -9 $$").returncode == 128 + signal.SIGKILL
    missing = job.exec("no-such-program", "argument")
    assert missing.returncode == 127
    assert b"no-such-program" in missing.stderr


def test_exec__keeps_every_byte(job: Entered) -> None:
    data = os.urandom(3_000_000) + bytes(range(256))
    assert job.out("cat", stdin=data) == data
    digest = job.out("sha256sum", stdin=data).split()[0].decode()
    assert digest == hashlib.sha256(data).hexdigest()


def test_exec__passes_words_unchanged(job: Entered) -> None:
    words = ["a b", "'", '"', "$HOME", "ü\n", ""]
    assert job.out("printf", "%s|", *words) == "".join(f"{word}|" for word in words).encode()


def test_interrupt__reaches_the_command(job: Entered) -> None:
    with job.popen(
        "jobs", "exec", job.job_id, "--", "trap 'echo caught; exit 3' INT; echo ready; sleep 611 & wait"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(scaled(20)) == 3
        assert process.stdout.read() == b"caught\n"


def test_command__ends_with_its_user(job: Entered) -> None:
    with job.popen("jobs", "exec", job.job_id, "--", "echo ready; sleep 612") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    wait_until(lambda: not job.processes("sleep\x00612"), "the end of the command", 20)


def test_slow_reader__stops_the_command_and_nothing_is_lost(job: Entered) -> None:
    size = 30_000_000
    with job.popen("jobs", "exec", job.job_id, "--", f"head -c {size} /dev/zero; echo done >&2") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        received = len(process.stdout.read(1000))
        # Far more than every buffer on the way holds is left: the command cannot have ended.
        assert not select.select([process.stderr], [], [], 1.0)[0]
        assert job.out("echo another stream flows") == b"another stream flows\n"
        received += len(process.stdout.read())
        assert received == size
        assert process.wait(scaled(20)) == 0


def test_terminal__is_one_for_the_command(job: Entered) -> None:
    ours, theirs = pty.openpty()
    with job.popen(
        "jobs", "exec", "-t", job.job_id, "--", "bash", "--norc", stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        read_until(ours, b"# " if os.geteuid() == 0 else b"$ ")
        os.write(ours, b"tty -s && echo a-$((40+2))-tty; stty size; sleep 613\n")
        read_until(ours, b"a-42-tty")
        wait_until(lambda: job.processes("sleep\x00613"), "the command in the shell", 20)
        os.write(ours, b"\x03")  # Ctrl-C ends the command in the shell, and not the shell
        os.write(ours, b"echo still-$((1+1)); exit 9\n")
        read_until(ours, b"still-2")
        assert process.wait(scaled(20)) == 9
    os.close(ours)


def read_until(terminal: int, expected: bytes) -> bytes:
    received, deadline = b"", Deadline(20)
    while expected not in received:
        assert select.select([terminal], [], [], max(0.0, deadline.remaining_s))[0], received
        received += os.read(terminal, 4096)
    return received


def test_end_of_the_job__ends_commands(controller: Controller) -> None:
    job = Entered(controller, launch(controller, "--", "until [ -e go ]; do sleep 0.1; done"))
    controller.until(lambda: controller.job(job.job_id)["status"] == "RUNNING", "the job to run")
    with job.popen("jobs", "exec", job.job_id, "--", "(setsid sleep 614 &); echo ready; sleep 615") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        job.exec("touch go")  # the end of the job may end this command too, before it has answered
        _, err = process.communicate(timeout=scaled(30))
    assert process.returncode != 0
    assert b"the job has ended on this machine" in err
    wait_until(lambda: not job.processes("sleep\x00614"), "the end of what the command left behind", 20)
    controller.until(lambda: controller.job(job.job_id)["status"] == "SUCCEEDED", "the job to succeed")


def test_timeline__names_who_has_entered(job: Entered) -> None:
    job.out("true")
    job.out("true")
    entries = [e for e in job.controller.job(job.job_id)["timeline"] if e["kind"] == "node.entered"]
    commands = [e for e in entries if e["data"]["how"] == "exec" and e["rank"] == 0]
    assert len(commands) == 1, "one entry stands for many commands"
    assert commands[0]["message"].endswith("ran a command")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("999", "there is no job 999"),
        *((one, f"no job or cluster is called '{one}'") for one in ("job-0", "my-cluster", "../x")),
    ],
)
def test_unknown_name__is_one_clear_error(job: Entered, name: str, message: str) -> None:
    done = job.run("jobs", "exec", name, "--", "true")
    assert done.returncode != 0
    assert message in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_rank_that_does_not_exist__is_one_clear_error(job: Entered) -> None:
    done = job.exec("true", options=("--rank", "2"))
    assert done.returncode != 0
    assert f"job {job.job_id} has no node 2" in done.stderr.decode()


def test_job_that_has_ended__is_one_clear_error(controller: Controller) -> None:
    job = Entered(controller, launch(controller, "--", "true"))
    controller.until(lambda: controller.job(job.job_id)["ended_at"], "the end of the job")
    controller.until(lambda: b"has ended" in job.exec("true").stderr, "the error")


def test_first_output__arrives_soon(job: Entered) -> None:
    job.out("true")
    began = time.monotonic()
    job.out("true")
    assert time.monotonic() - began < scaled(1.5)


def test_standard_input_that_is_closed__ends_the_input(job: Entered) -> None:
    with job.popen("jobs", "exec", job.job_id, "--", "cat; echo end", stdin=subprocess.DEVNULL) as process:
        out, _ = process.communicate(timeout=scaled(20))
    assert out == b"end\n"
