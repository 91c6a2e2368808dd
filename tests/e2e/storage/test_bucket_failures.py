"""Bucket failures are detected and reported, and awaited if they may pass; nothing unsaved is reported as saved."""

from __future__ import annotations

import re

import pytest

from e2e.storage.s3_server import S3Server
from e2e.storage.stored_jobs import Jobs
from support.helpers.controllers import Controller


@pytest.mark.fuse
def test_lost_mount__is_detected_and_the_task_recovers(controller: Controller, s3: S3Server, jobs: Jobs) -> None:
    name = s3.new_name()
    run = """
        ls /ckpt
        for i in $(seq 1 600); do
          (echo $i > /ckpt/g$PERDURE_GENERATION-$i) 2>/dev/null && echo wrote $i || echo could not write $i
          sleep 0.05
        done
    """
    job = jobs.launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", run)
    jobs.until_logged(controller, job, "wrote 5\n")
    rclones = jobs.mounts(controller, job)
    assert len(rclones) == 1
    rclones[0].kill()
    again = controller.until(lambda: controller.job(job)["recovery_count"] == 1 and controller.job(job), "the recovery")
    controller.until(lambda: controller.job(job)["generation"] == 2, "another machine")
    controller.until(lambda: controller.log(job).count("wrote 5\n") == 2, "the second attempt's work")
    lost = [one for one in again["timeline"] if one["kind"] == "attempt.lost"]
    assert [one["reason"] for one in lost] == ["MOUNT_LOST"]
    log = controller.log(job)
    assert "perdure: the mount at /ckpt is lost" in log
    assert "could not write" in log, "nothing pretends to be the mount"
    first = log[: log.index("could not write")]
    expected = {f"g1-{line.split()[1]}" for line in first.splitlines() if line.startswith("wrote ")}
    assert expected <= set(s3.objects(name)), "what was written before the loss was flushed"
    assert not re.search(r"could not write \d+\n(.*\n)*?wrote \d+\n", log[: log.rindex("could not write")])
    controller.perdure("jobs", "cancel", job, "--yes", "--no-graceful")


@pytest.mark.fuse
def test_lost_mount__moves_a_task_that_ended_at_its_first_error(
    controller: Controller, s3: S3Server, jobs: Jobs
) -> None:
    """The error is the mount's: the task neither fails nor uses up one of its restarts."""
    run = """
        set -e
        for i in $(seq 1 100000); do echo $i > /ckpt/$i; [ $i -ne 5 ] || echo wrote 5; sleep 0.01; done
    """
    job = jobs.launch(controller, f"/ckpt: {{name: {s3.new_name()}, store: s3, mode: MOUNT_CACHED}}", run)
    jobs.until_logged(controller, job, "wrote 5\n")
    jobs.mounts(controller, job)[0].kill()
    controller.until(lambda: controller.job(job)["generation"] == 2, "another attempt")
    detail = controller.job(job)
    assert (detail["recovery_count"], detail["restarts_on_errors"]) == (1, 0), jobs.explained(controller, detail)
    assert "MOUNT_LOST" in [one["reason"] for one in detail["timeline"] if one["kind"] == "attempt.lost"]
    controller.perdure("jobs", "cancel", job, "--yes", "--no-graceful")


@pytest.mark.fuse
def test_removed_bucket__fails_the_job_with_the_unsaved_files(controller: Controller, s3: S3Server, jobs: Jobs) -> None:
    name = s3.new_bucket()
    run = """
        echo ready
        until [ -e ~/go ]; do sleep 0.1; done
        echo precious > /ckpt/model.pt; echo also > /ckpt/optimizer.pt
        seq 1 20000; echo the last line
    """
    job = jobs.launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", run)
    jobs.until_logged(controller, job, "ready\n")
    s3.remove(name)
    (jobs.machine_root(controller, job) / "home/perdure/go").touch()
    ended = jobs.until_ended(controller, job)
    assert (ended["status"], ended["reason"]) == ("FAILED", "FLUSH_FAILED"), jobs.explained(controller, ended)
    assert "model.pt" in ended["message"]
    assert "optimizer.pt" in ended["message"]
    assert name in ended["message"]
    assert len(ended["attempts"]) == 1
    log = controller.log(job)
    assert "\n19999\n20000\nthe last line\n" in log
    jobs.until_gone(controller, job)


def test_missing_bucket__fails_the_job_before_any_launch(controller: Controller, jobs: Jobs) -> None:
    done = jobs.submit(controller, "/data: s3://not-there-at-all/data", "echo never")
    job = controller.client.jobs(limit=1)["jobs"][0]["job_id"]
    ended = jobs.until_ended(controller, job)
    assert (ended["status"], ended["reason"]) == ("FAILED_PRECHECKS", "STORAGE_FAILED"), done.stdout + done.stderr
    assert "there is no bucket not-there-at-all" in ended["message"]
    assert ended["attempts"] == []


def test_unavailable_s3__is_awaited(controller: Controller, s3: S3Server, jobs: Jobs) -> None:
    name, unwanted = s3.new_name(), s3.new_name()
    s3.stop()
    try:
        job = jobs.launch(controller, f"/data: {{name: {name}, store: s3, mode: COPY}}", "ls /data; echo ran")
        other = jobs.launch(controller, f"/data: {{name: {unwanted}, store: s3}}", "echo never")
        for waiting in (job, other):
            controller.until(lambda id=waiting: s3.endpoint in jobs.shown(controller, id), "why it waits")  # type: ignore[misc]
            assert controller.job(waiting)["status"] == "PENDING"
        controller.perdure("jobs", "cancel", other, "--yes")
        assert jobs.until_ended(controller, other)["status"] == "CANCELLED"
    finally:
        s3.start()
    ended = jobs.until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    assert name in s3.buckets()
    controller.until(lambda: not jobs.open_intents(controller, other), "the end of what the cancelled job wanted")
    assert unwanted not in s3.buckets()


@pytest.mark.parametrize(
    ("uri", "why"), [("cos://us-east/some-bucket/data", "not supported"), ("r2://some-bucket", "a section `r2:`")]
)
def test_unusable_store__is_rejected_at_submission(controller: Controller, jobs: Jobs, uri: str, why: str) -> None:
    before = controller.client.jobs(limit=1)["total"]
    done = jobs.submit(controller, f"/data: {uri}", "echo never")
    assert done.returncode == 2
    assert uri in done.stderr
    assert why in done.stderr
    assert "file_mounts" in done.stderr
    assert controller.client.jobs(limit=1)["total"] == before
