"""ssh, scp, rsync and forwarded ports, with OpenSSH's own client and server, to a machine on which nothing listens."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from e2e.enter.conftest import Entered, launch, needs_ssh
from support.helpers.controllers import Controller
from support.helpers.ports import unused_port
from support.helpers.timing import scaled, wait_until

SERVER = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port={port}, bind='127.0.0.1')"


@pytest.fixture(scope="module")
def ssh_job(job: Entered) -> Entered:
    """The job, after its user has used `perdure ssh` for the first time."""
    done = job.run("ssh", job.name, "true")
    assert done.returncode == 0, done.stderr
    return job


def ssh(job: Entered, *words: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return job.run(*job.ssh_option(), *words, program="ssh", stdin=stdin)


@needs_ssh
def test_perdure_ssh__runs_a_command_and_passes_its_exit_code(ssh_job: Entered) -> None:
    done = ssh_job.run("ssh", ssh_job.name, "echo $COLOUR $SKYPILOT_NODE_RANK; exit 5")
    assert (done.returncode, done.stdout) == (5, b"blue 0\n"), done.stderr
    assert ssh_job.run("ssh", str(ssh_job.job_id), "true").returncode == 0


@needs_ssh
def test_ssh__knows_every_node_by_name_and_asks_nothing(ssh_job: Entered) -> None:
    done = ssh(ssh_job, "-o", "BatchMode=yes", f"{ssh_job.name}-worker1", "echo $SKYPILOT_NODE_RANK")
    assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr


@needs_ssh
def test_interactive_shell__begins_in_the_folder_of_the_job(ssh_job: Entered) -> None:
    done = ssh(ssh_job, "-tt", ssh_job.name, stdin=b"cat made.txt; tty; echo $COLOUR; exit\n")
    out = done.stdout.decode()
    assert re.search(r"a file\r?\n", out), out
    assert "/dev/pts/" in out


@needs_ssh
def test_scp_and_rsync__copy_both_ways(ssh_job: Entered, tmp_path: Path) -> None:
    data, option = os.urandom(2_000_000), ssh_job.ssh_option()
    (tmp_path / "sent").write_bytes(data)
    up = ssh_job.run("-q", *option, tmp_path / "sent", f"{ssh_job.name}:copied", program="scp")
    assert up.returncode == 0, up.stderr
    down = ssh_job.run("-q", *option, f"{ssh_job.name}:copied", tmp_path / "back", program="scp")
    assert down.returncode == 0, down.stderr
    assert (tmp_path / "back").read_bytes() == data
    command = " ".join(["ssh", *option])
    synced = ssh_job.run("-a", "-e", command, f"{ssh_job.name}:sky_workdir/", f"{tmp_path}/synced/", program="rsync")
    assert synced.returncode == 0, synced.stderr
    assert (tmp_path / "synced/made.txt").read_text() == "a file\n"


@needs_ssh
def test_local_forwarding__reaches_a_server_on_the_machine(ssh_job: Entered) -> None:
    remote, local = unused_port(), unused_port()
    serve = ["jobs", "exec", ssh_job.job_id, "--", "python3", "-c", SERVER.format(port=remote)]
    tunnel = [*ssh_job.ssh_option(), "-N", "-L", f"{local}:127.0.0.1:{remote}", ssh_job.name]
    with ssh_job.popen(*serve), ssh_job.popen(*tunnel, program="ssh"):
        assert b"a file" in until_served(local)


def test_port_forward__reaches_a_server_on_the_machine(job: Entered) -> None:
    remote, local = unused_port(), unused_port()
    serve = ["jobs", "exec", job.job_id, "--", "python3", "-c", SERVER.format(port=remote)]
    with job.popen(*serve), job.popen("port-forward", job.name, f"{local}:{remote}") as forward:
        assert forward.stdout is not None
        assert f"127.0.0.1:{local} to port {remote} of {job.name}".encode() in forward.stdout.readline()
        for _ in range(40):  # more connections than may be open at a time
            assert b"a file" in until_served(local)
        forward.send_signal(signal.SIGINT)
        assert forward.wait(scaled(20)) == 130


def until_served(port: int) -> bytes:
    def fetch() -> bytes | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/made.txt", timeout=scaled(10)) as response:
                return bytes(response.read())
        except OSError:
            return None

    return wait_until(fetch, "the server on the machine", 30)


def test_port_without_a_server__closes_the_connection_with_a_reason(job: Entered) -> None:
    remote, local = unused_port(), unused_port()
    with job.popen("port-forward", job.name, f"{local}:{remote}") as forward:
        assert forward.stdout is not None
        forward.stdout.readline()
        with socket.create_connection(("127.0.0.1", local), timeout=scaled(20)) as link:
            assert link.recv(1) == b""
        forward.kill()
        _, err = forward.communicate()
    assert f"nothing on this machine can be reached at port {remote}" in err.decode()


@needs_ssh
def test_recovery__keeps_the_name_and_the_host_key(controller: Controller) -> None:
    job = Entered(controller, launch(controller, "--", "sleep 600"))
    controller.until(lambda: controller.job(job.job_id)["status"] == "RUNNING", "the job to run")
    assert job.run("ssh", job.name, "true").returncode == 0
    known = (controller.home / "ssh/known_hosts").read_text()
    controller.perdure("jobs", "preempt", job.job_id)
    controller.until(lambda: controller.job(job.job_id)["recovery_count"] == 1, "the recovery")
    controller.until(lambda: controller.job(job.job_id)["status"] == "RUNNING", "the job to run again")
    done = ssh(job, "-o", "BatchMode=yes", job.name, "echo $PERDURE_GENERATION")
    assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr
    assert (controller.home / "ssh/known_hosts").read_text() == known


@needs_ssh
def test_host_key__is_checked(ssh_job: Entered, tmp_path: Path) -> None:
    """A machine that cannot prove to be the job's is rejected: the key comes from the controller alone."""
    other = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    public = " ".join((tmp_path / "key.pub").read_text().split()[:2])
    other.write_text(f"{ssh_job.name} {public}\n")
    done = ssh(ssh_job, "-o", f"UserKnownHostsFile={other}", ssh_job.name, "true")
    assert done.returncode == 255
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


@needs_ssh
def test_foreign_key__is_refused(ssh_job: Entered, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    done = ssh(
        ssh_job, "-o", "BatchMode=yes", "-i", tmp_path / "key", "-F", "none", *proxy_options(ssh_job), ssh_job.name
    )
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr


def proxy_options(job: Entered) -> list[str]:
    config = (job.controller.home / "ssh/config").read_text()
    command = re.search(r"ProxyCommand (.*)", config)
    assert command is not None
    known = job.controller.home / "ssh/known_hosts"
    return ["-o", f"ProxyCommand={command[1]}", "-o", "User=root", "-o", f"UserKnownHostsFile={known}"]


@needs_ssh
def test_session_files__are_gone_after_the_session(ssh_job: Entered) -> None:
    assert ssh(ssh_job, ssh_job.name, "true").returncode == 0
    state = "/proc/self/root" + ssh_job.out("dirname $PERDURE_RUN_DIR").decode().strip()
    wait_until(lambda: ssh_job.out(f"ls {state}/sessions").strip() == b"", "the end of the session's files", 20)


def test_users_configuration__is_kept(job: Entered, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    config = home / ".ssh/config"
    config.write_text("# mine\nHost example\n    User me\n")
    config.chmod(0o644)
    for _ in range(2):
        environ = {**os.environ, "HOME": str(home), "PERDURE_HOME": str(job.controller.home)}
        subprocess.run(
            [*job.controller.program, "ssh", job.name, "-G"], env=environ, check=True, stdout=subprocess.DEVNULL
        )
    assert config.read_text() == f'Include "{job.controller.home}/ssh/config"\n\n# mine\nHost example\n    User me\n'
    assert config.stat().st_mode & 0o777 == 0o644
