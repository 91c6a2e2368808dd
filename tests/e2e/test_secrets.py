"""Where a secret may be during a job and afterwards, and where not: files, database, logs, responses, processes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from support.helpers.controllers import Controller
from support.helpers.timing import scaled

pytestmark = pytest.mark.api

GIVEN, WRITTEN = "hunter2-given-on-the-command-line", "s3cr3t-written-in-the-yaml"
IN_URL = "p4ssw0rd-written-in-the-url"
SECRETS = (GIVEN.encode(), WRITTEN.encode(), IN_URL.encode())
HOLDS = "export MARK=$(printf %s holding); while [ ! -e ~/go ]; do sleep 0.1; done"


def task(folder: Path, run: str, more: str = "") -> Path:
    path = folder / "task.yaml"
    path.write_text(f"secrets:\n  GIVEN: null\n  WRITTEN: {WRITTEN}\n{more}run: |\n  {run}\n")
    return path


def launch(controller: Controller, path: Path) -> int:
    # Not as an argument, which every user of this computer could read.
    (path.parent / "secrets.env").write_text(f"GIVEN={GIVEN}\n")
    before = {job["job_id"] for job in controller.client.jobs()["jobs"]}
    controller.perdure("jobs", "launch", path, "--secret-file", path.parent / "secrets.env", "-d", "-y")
    (job,) = {job["job_id"] for job in controller.client.jobs()["jobs"]} - before
    return int(job)


def files_with_a_secret(folder: Path) -> list[Path]:
    """Files that are removed meanwhile are passed over: a machine may be ending."""
    paths = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            try:
                data = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
            except OSError:
                continue
            if any(secret in data for secret in SECRETS):
                paths.append(path)
    return paths


def processes_with_a_secret() -> tuple[set[int], set[int]]:
    """Processes with a secret in their arguments, and those with one in their environment."""
    arguments, environments = set[int](), set[int]()
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        for name, pids in (("cmdline", arguments), ("environ", environments)):
            try:
                data = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
            if any(secret in data for secret in SECRETS):
                pids.add(pid)
    return arguments, environments


def reported(controller: Controller, job: int) -> str:
    """Everything that the controller returns about a job, by every command and every call."""
    commands = [
        ("jobs", "queue", "-a", "-v"), ("jobs", "queue", "-a", "-o", "json"), ("jobs", "show", job),
        ("jobs", "show", job, "-o", "json"), ("jobs", "logs", job, "--no-follow"), ("controller", "logs"),
    ]  # fmt: skip
    output = [controller.perdure(*words, check=False) for words in commands]
    text = "".join(done.stdout + done.stderr for done in output)
    client = controller.client
    headers = {"Authorization": f"Bearer {client.endpoint.token}"}
    for path in (f"jobs/{job}", "jobs", "controller", "clouds", f"jobs/{job}/logs", "controller/logs"):
        text += requests.get(f"{client.endpoint.url}/api/v1/{path}", headers=headers, timeout=scaled(30)).text
    return text


def is_clean(text: str) -> bool:
    return not any(secret.decode() in text for secret in SECRETS)


@pytest.fixture
def done_with(controller: Controller) -> Iterator[None]:
    yield
    controller.perdure("jobs", "cancel", "--all-users", "--yes", "--no-graceful", check=False)


@pytest.mark.usefixtures("done_with")
def test_secret__is_only_on_the_node_and_removed_at_the_end(controller: Controller, tmp_path: Path) -> None:
    run = f'[ "$GIVEN" = {GIVEN[:7]}"{GIVEN[7:]}" ] || exit 9; {HOLDS}'.replace(GIVEN[7:], "${GIVEN:7}")
    job = launch(controller, task(tmp_path, run))
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run")
    controller.until(lambda: processes_with_a_secret()[1], "its workload")

    arguments, environments = processes_with_a_secret()
    assert arguments == set()
    for pid in environments:
        assert b"SKYPILOT_TASK_ID=" in Path(f"/proc/{pid}/environ").read_bytes(), "the user's own process"

    machines = controller.home / "local" / "instances"
    held = files_with_a_secret(controller.home)
    assert all(machines in path.parents and "machine" in path.relative_to(machines).parts for path in held), held
    for path in held:
        assert path.stat().st_mode & 0o077 == 0, f"{path} is its owner's alone"
    assert is_clean(reported(controller, job))
    with sqlite3.connect(controller.home / "perdure.db") as database:
        assert is_clean("\n".join(database.iterdump()))

    for home in machines.glob("*/machine/**/sky_workdir"):
        (home.parent / "go").touch()
    controller.perdure("jobs", "cancel", job, "--yes", "--no-graceful", check=False)
    controller.until(lambda: controller.job(job)["attempts"][-1]["state"] == "GONE", "the machine's end")
    assert files_with_a_secret(controller.home) == []
    assert is_clean(reported(controller, job))


@pytest.mark.usefixtures("done_with")
@pytest.mark.parametrize(
    ("run", "more", "status"),
    [
        ("exit 3", "", "FAILED"),
        ("true", "setup: |\n  exit 4\n", "FAILED_SETUP"),
        ("true", "workdir: {url: 'http://user:${WRITTEN}@127.0.0.1:9/x.git', ref: '${GIVEN}'}\n", None),
        ("true", f"workdir: {{url: 'http://user:{IN_URL}@127.0.0.1:9/x.git'}}\n", None),
        ("true", "file_mounts: {'/data/${WRITTEN}': {name: a-bucket, mode: COPY}}\n", None),
    ],
    # pytest writes the ids into the environment of every process.
    ids=["run", "setup", "git-reference", "git-url", "mount"],
)
def test_secret__is_not_shown_by_a_failed_job(
    controller: Controller, tmp_path: Path, run: str, more: str, status: str | None
) -> None:
    job = launch(controller, task(tmp_path, run, more))
    controller.until(lambda: controller.job(job)["ended_at"], "its end")
    assert status in (None, controller.job(job)["status"])
    if "workdir" in more:
        assert "git clone failed" in controller.job(job)["message"]
    controller.until(lambda: controller.job(job)["attempts"][-1]["state"] == "GONE", "the machine's end")
    assert is_clean(reported(controller, job))
    assert files_with_a_secret(controller.home) == []
    with sqlite3.connect(controller.home / "perdure.db") as database:
        assert is_clean("\n".join(database.iterdump()))


def test_secret__is_not_shown_in_a_rejection(controller: Controller, tmp_path: Path) -> None:
    for wrong in ("num_nodes: 0\n", "resources: {gpus: 'H100:99'}\n", f"envs: {{A: [{WRITTEN}]}}\n"):
        path = task(tmp_path, "true", wrong)
        (tmp_path / "secrets.env").write_text(f"GIVEN={GIVEN}\n")
        done = controller.perdure("jobs", "launch", path, "--secret-file", tmp_path / "secrets.env", "-y", check=False)
        assert done.returncode != 0
        assert is_clean(done.stdout + done.stderr)
    assert files_with_a_secret(controller.home) == []


@pytest.mark.usefixtures("done_with")
def test_rotated_key__keeps_a_running_job_and_its_secrets(controller: Controller, tmp_path: Path) -> None:
    """Its node reconnects with the old key's token, and the next attempt gets the secrets that were sealed with it."""
    run = f'[ "$GIVEN" = {GIVEN[:7]}"{GIVEN[7:]}" ] || exit 9; {HOLDS}'.replace(GIVEN[7:], "${GIVEN:7}")
    job = launch(controller, task(tmp_path, run))
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run")
    before = (controller.home / "secret.key").read_text()
    output = controller.perdure("controller", "rotate-key").stdout
    assert "The controller is running again" in output
    assert "1 task(s) had secrets" in output
    new, old = (controller.home / "secret.key").read_text().splitlines()
    assert (old, new != old) == (before.strip(), True)
    controller.until(lambda: controller.job(job)["attempts"][-1]["nodes"][0]["connected"], "its node to reconnect")
    (attempt,) = controller.job(job)["attempts"]

    controller.perdure("jobs", "preempt", job)
    controller.until(lambda: controller.job(job)["recovery_count"] == 1, "the recovery")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run again")
    for home in (controller.home / "local" / "instances").glob("*/machine/**/sky_workdir"):
        (home.parent / "go").touch()
    controller.until(lambda: controller.job(job)["status"] == "SUCCEEDED", "its end")
    assert attempt["state"] == "RUNNING"
