"""A real controller per module, whose home folder of the user is the test's, and a job that runs on it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.helpers.controllers import ROOT, Controller, running_controller
from support.helpers.timing import scaled

SERVERS = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"
needs_ssh = pytest.mark.skipif(
    not all(shutil.which(name, path=SERVERS) for name in ("ssh", "sshd", "rsync")) or os.geteuid() != 0,
    reason="ssh, sshd or rsync is missing (scripts/ensure-ssh.sh), or machines are not isolated without root",
)


@dataclass(frozen=True)
class Entered:
    """A running job, and the commands of its user."""

    controller: Controller
    job_id: int

    @property
    def name(self) -> str:
        return f"job-{self.job_id}"

    @contextlib.contextmanager
    def popen(self, *words: object, program: str = "", **more: object) -> Iterator[subprocess.Popen[bytes]]:
        """`perdure …`, or `program …`, of the user; it is killed in the end."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        argv = [program] if program else [sys.executable, "-m", "perdure.cli"]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        with subprocess.Popen(  # type: ignore[call-overload]
            [*argv, *map(str, words)],
            cwd=ROOT,
            env={**environ, **self.controller.environ, "PERDURE_HOME": str(self.controller.home)},
            **streams,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *words: object, program: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        with self.popen(*words, program=program) as process:
            out, err = process.communicate(stdin, timeout=scaled(60))
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def exec(
        self, *words: object, stdin: bytes = b"", options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[bytes]:
        return self.run("jobs", "exec", *options, self.job_id, "--", *words, stdin=stdin)

    def out(self, *words: object, stdin: bytes = b"") -> bytes:
        """What a command prints that has to succeed."""
        done = self.exec(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ssh_option(self) -> list[str]:
        """ssh reads the configuration of the account, whatever HOME says."""
        return ["-F", str(Path(self.controller.environ["HOME"]) / ".ssh/config")]

    def processes(self, text: str) -> bool:
        """Whether a process whose arguments contain `text` runs on this computer."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if text.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                    return True
            except OSError:
                continue
        return False


def launch(controller: Controller, *words: object) -> int:
    done = controller.perdure("jobs", "launch", "--detach-run", "--yes", *words)
    return int(re.findall(r"Job (\d+) ", done.stdout)[0])


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    home, user_home = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("user")
    with running_controller(home, environ={"HOME": str(user_home)}) as one:
        yield one


@pytest.fixture(scope="module")
def job(controller: Controller) -> Entered:
    """A job with two nodes, whose workdir has a file."""
    job_id = launch(
        controller, "--num-nodes", 2, "--env", "COLOUR=blue", "--", "echo 'a file' > made.txt; echo up; sleep 600"
    )
    one = Entered(controller, job_id)
    controller.until(lambda: controller.job(job_id)["status"] == "RUNNING", "the job to run")
    controller.until(lambda: b"a file" in one.exec("cat made.txt").stdout, "the file of the job")
    return one
