"""Machines without FUSE, and daemons without root."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.storage.s3_server import S3Server
from e2e.storage.stored_jobs import Jobs
from support.helpers.controllers import Controller, ControllerOn

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534


@pytest.fixture(scope="module")
def without_fuse(
    s3: S3Server, tmp_path_factory: pytest.TempPathFactory, controller_on: ControllerOn, credentials: dict[str, str]
) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(f"s3: {{endpoint: '{s3.endpoint}', region: us-east-1}}\n")
    with controller_on(home, environ={**credentials, "PERDURE_NO_FUSE": "1"}) as one:
        yield one


def test_without_fuse__a_local_bucket_is_linked(without_fuse: Controller, jobs: Jobs) -> None:
    mounts = """
        /ckpt: {name: linked, mode: MOUNT_CACHED}
        ~/plain: {name: linked-plain, mode: MOUNT}
    """
    job = jobs.launch(without_fuse, mounts, jobs.trainer(30) + "    echo hi > ~/plain/hi")
    jobs.until_logged(without_fuse, job, " step-0005\n")
    without_fuse.perdure("jobs", "preempt", job, "--kill")
    ended = jobs.until_ended(without_fuse, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(without_fuse, ended)
    log = without_fuse.log(job)
    output = [line for line in log.splitlines() if "/ckpt is a link to" in line]
    assert len(output) == len(ended["attempts"]) == 2
    assert "PERDURE_NO_FUSE" in output[0]
    bucket = without_fuse.home / "local" / "buckets" / "linked"
    digests = jobs.digests({path.name: path.read_bytes() for path in bucket.iterdir()})
    assert jobs.written(log).items() <= digests.items()
    assert len(digests) == 30
    assert (bucket.parent / "linked-plain" / "hi").read_text() == "hi\n"


def test_without_fuse__an_s3_mount_fails_with_the_reason_and_a_copy_works(
    without_fuse: Controller, s3: S3Server, jobs: Jobs
) -> None:
    bucket = s3.new_bucket(one=b"1")
    job = jobs.launch(without_fuse, f"/ckpt: {{name: {bucket}, store: s3, mode: MOUNT}}", "echo never")
    ended = jobs.until_ended(without_fuse, job)
    assert ended["status"] == "FAILED_PRECHECKS", jobs.explained(without_fuse, ended)
    assert "PERDURE_NO_FUSE" in ended["message"]
    assert "never" not in without_fuse.log(job)
    copied = jobs.until_ended(without_fuse, jobs.launch(without_fuse, f"/data: s3://{bucket}", "cat /data/one"))
    assert copied["status"] == "SUCCEEDED", jobs.explained(without_fuse, copied)


def test_without_fuse__check_reports_it(without_fuse: Controller, controller: Controller) -> None:
    assert "PERDURE_NO_FUSE" in without_fuse.perdure("check", "local").stdout
    assert "PERDURE_NO_FUSE" not in controller.perdure("check", "local").stdout


def interpreter_for_others() -> str | None:
    """A Python of this version that any user can run."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    can_drop = os.geteuid() == 0 and shutil.which("setpriv")
    return python if can_drop and os.access(python, os.X_OK) else None


@pytest.fixture
def unprivileged(controller_on: ControllerOn, credentials: dict[str, str]) -> Iterator[Controller]:
    """A controller whose daemon and machines run as an unprivileged user."""
    python = interpreter_for_others()
    if python is None:
        pytest.skip("needs root, setpriv, and a Python of this version that other users can run")
    user_home = Path(tempfile.mkdtemp(prefix="perdure-e2e-"))  # pytest's own folders are closed to other users
    os.chown(user_home, NOBODY, NOBODY)
    imports = [*(str(ROOT / root) for root in ("recovery", "checkpoint", "controller")), sysconfig.get_path("purelib")]
    environ = {**credentials, "HOME": str(user_home), "PYTHONPATH": os.pathsep.join(imports), "USER": "nobody"}
    drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    try:
        with controller_on(user_home / "x", environ=environ, program=(*drop, python, "-m", "perdure.cli")) as one:
            yield one
    finally:
        shutil.rmtree(user_home)


def test_without_root__a_job_runs_and_recovers(unprivileged: Controller, jobs: Jobs) -> None:
    mounts = "~/ckpt: {name: unprivileged, mode: MOUNT_CACHED}"
    job = replace(jobs, folder=unprivileged.home).launch(unprivileged, mounts, jobs.trainer(60, "~/ckpt"))
    jobs.until_logged(unprivileged, job, " step-0004\n")
    host = jobs.machine_processes(unprivileged, job)[0]
    assert host.uids().real == NOBODY
    unprivileged.perdure("jobs", "preempt", job, "--notice", "5")
    ended = jobs.until_ended(unprivileged, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(unprivileged, ended)
    assert ended["recovery_count"] == 1
    bucket = unprivileged.home / "local" / "buckets" / "unprivileged"
    digests = jobs.digests({path.name: path.read_bytes() for path in bucket.iterdir()})
    assert digests == jobs.written(unprivileged.log(job))
    assert "ckpt is a link to" in unprivileged.log(job)
    assert "local ones are linked" in unprivileged.perdure("check", "local").stdout
    assert len(digests) == 60
