"""Machines that can not mount, and daemons that are not root: less comfort, the same promises."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534


@pytest.fixture(scope="module")
def without_fuse(
    s3: Any, tmp_path_factory: pytest.TempPathFactory, controller_on: Callable[..., Any], credentials: dict[str, str]
) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.yaml").write_text(f"s3: {{endpoint: '{s3.endpoint}', region: us-east-1}}\n")
    with controller_on(home, environ={**credentials, "PERDURE_NO_FUSE": "1"}) as one:
        yield one


def test_without_fuse_a_local_bucket_is_linked(without_fuse: Any, jobs: Any) -> None:
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
    said = [line for line in log.splitlines() if "/ckpt is a link to" in line]
    assert len(said) == len(ended["attempts"]) == 2
    assert "PERDURE_NO_FUSE" in said[0]
    bucket = without_fuse.home / "local" / "buckets" / "linked"
    found = jobs.digests({path.name: path.read_bytes() for path in bucket.iterdir()})
    assert jobs.written(log).items() <= found.items()
    assert len(found) == 30
    assert (bucket.parent / "linked-plain" / "hi").read_text() == "hi\n"


def test_without_fuse_a_mount_of_s3_fails_and_says_why_and_a_copy_works(without_fuse: Any, s3: Any, jobs: Any) -> None:
    bucket = s3.new_bucket(one=b"1")
    job = jobs.launch(without_fuse, f"/ckpt: {{name: {bucket}, store: s3, mode: MOUNT_CACHED}}", "echo never")
    ended = jobs.until_ended(without_fuse, job)
    assert ended["status"] == "FAILED_PRECHECKS", jobs.explained(without_fuse, ended)
    assert "PERDURE_NO_FUSE" in ended["message"]
    assert "never" not in without_fuse.log(job)
    copied = jobs.until_ended(without_fuse, jobs.launch(without_fuse, f"/data: s3://{bucket}", "cat /data/one"))
    assert copied["status"] == "SUCCEEDED", jobs.explained(without_fuse, copied)


def test_check_tells_of_missing_fuse(without_fuse: Any, controller: Any) -> None:
    assert "PERDURE_NO_FUSE" in without_fuse.perdure("check", "local").stdout
    assert "PERDURE_NO_FUSE" not in controller.perdure("check", "local").stdout


def interpreter_for_others() -> str | None:
    """A Python of this version that any user may run."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    can_drop = os.geteuid() == 0 and shutil.which("setpriv")
    return python if can_drop and os.access(python, os.X_OK) else None


@pytest.fixture
def unprivileged(controller_on: Callable[..., Any], credentials: dict[str, str]) -> Iterator[Any]:
    """A controller whose daemon and machines belong to a user without any rights."""
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


def test_without_root_a_job_runs_and_recovers(unprivileged: Any, jobs: Any) -> None:
    mounts = "~/ckpt: {name: unprivileged, mode: MOUNT_CACHED}"
    job = replace(jobs, folder=unprivileged.home).launch(unprivileged, mounts, jobs.trainer(25, "~/ckpt"))
    jobs.until_logged(unprivileged, job, " step-0004\n")
    host = jobs.machine_processes(unprivileged, job)[0]
    assert host.uids().real == NOBODY
    unprivileged.perdure("jobs", "preempt", job, "--notice", "5")
    ended = jobs.until_ended(unprivileged, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(unprivileged, ended)
    assert ended["recovery_count"] == 1
    bucket = unprivileged.home / "local" / "buckets" / "unprivileged"
    found = jobs.digests({path.name: path.read_bytes() for path in bucket.iterdir()})
    assert found == jobs.written(unprivileged.log(job))
    assert "ckpt is a link to" in unprivileged.log(job)
    assert "local ones are linked" in unprivileged.perdure("check", "local").stdout
    assert len(found) == 25
