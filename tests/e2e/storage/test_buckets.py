"""Buckets from the task file to the object and back: real machines, rclone over FUSE, an S3 server."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
from pathlib import Path

import psutil
import pytest

from e2e.storage.s3_server import S3Server
from e2e.storage.stored_jobs import Jobs
from support.helpers.controllers import Controller


@pytest.mark.fuse
def test_preempted_job__resumes_from_its_s3_bucket(controller: Controller, s3: S3Server, jobs: Jobs) -> None:
    name = s3.new_name()
    job = jobs.launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", jobs.trainer(30))
    jobs.until_logged(controller, job, " step-0006\n")
    controller.perdure("jobs", "preempt", job, "--notice", "10")
    ended = jobs.until_ended(controller, job)
    log = controller.log(job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    assert ended["recovery_count"] == 1
    first, second = ended["attempts"]
    assert first["zone"] != second["zone"]
    starts = [int(line.split()[2]) for line in log.splitlines() if "starts after" in line]
    assert starts[0] == 0
    assert starts[1] >= 6, "what was flushed at the notice is there"
    objects = s3.objects(name)
    assert set(objects) == {f"step-{i:04}" for i in range(1, 31)}
    assert jobs.digests(objects) == jobs.written(log), "bit for bit"


@pytest.mark.fuse
@pytest.mark.parametrize("existed", [False, True])
def test_temporary_bucket__is_deleted_with_its_job(
    controller: Controller, s3: S3Server, jobs: Jobs, existed: bool
) -> None:
    name = s3.new_bucket(old=b"data") if existed else s3.new_name()
    mounts = f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED, persistent: false}}"
    job = jobs.launch(controller, mounts, "echo hi > /ckpt/greeting; until [ -e ~/go ]; do sleep 0.1; ls /ckpt; done")
    jobs.until_logged(controller, job, "greeting\n")
    assert name in s3.buckets()
    (jobs.machine_root(controller, job) / "home/perdure/go").touch()
    ended = jobs.until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    if existed:
        jobs.until_gone(controller, job)
        assert s3.objects(name) == {"old": b"data", "greeting": b"hi\n"}
    else:
        controller.until(lambda: name not in s3.buckets(), "the bucket's end")


@pytest.mark.fuse
def test_two_nodes__write_one_bucket_without_exposing_credentials(
    controller: Controller, s3: S3Server, jobs: Jobs, credentials: dict[str, str]
) -> None:
    secret = credentials["AWS_SECRET_ACCESS_KEY"]
    name = s3.new_name()
    run = """
        head -c 300000 /dev/urandom > /ckpt/node-$SKYPILOT_NODE_RANK
        echo wrote $(sha256sum < /ckpt/node-$SKYPILOT_NODE_RANK | cut -d' ' -f1) node-$SKYPILOT_NODE_RANK
        env
        until [ -e ~/go ]; do sleep 0.1; done
    """
    mounts = f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED, config: {{mount_cached: {{vfs_write_back: 0s}}}}}}"
    job = jobs.launch(controller, mounts, run, more="num_nodes: 2")
    controller.until(lambda: controller.log(job).count("wrote ") == 2, "both nodes' work")
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if f":{name}" in line], "rclone is looked at"
    assert not [line for line in lines if secret in line]
    for rank in (0, 1):
        (jobs.machine_root(controller, job, rank) / "home/perdure/go").touch()
    ended = jobs.until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    log = controller.log(job).replace("(rank 0) ", "").replace("(rank 1) ", "")
    assert jobs.digests(s3.objects(name)) == jobs.written(log)
    with sqlite3.connect(controller.home / "perdure.db") as db:
        kept = "\n".join(db.iterdump())
    assert secret not in log + kept + jobs.shown(controller, job) + (controller.home / "controller.log").read_text()


@pytest.mark.fuse
def test_bucket_modes__read_and_write(controller: Controller, s3: S3Server, jobs: Jobs) -> None:
    bucket = s3.new_bucket(top=b"top", data__one=b"1" * 300_000, data__deep__two=b"two")
    shelf = controller.home / "local" / "buckets" / "shelf"
    (shelf / "data").mkdir(parents=True)
    (shelf / "data" / "three").write_bytes(b"three")
    mounts = f"""
        /s3-copy: s3://{bucket}/data
        /s3-file: s3://{bucket}/top
        ~/s3-home: {{source: "s3://{bucket}", mode: COPY}}
        /local-copy: local://shelf/data
        /s3: {{source: "s3://{bucket}/data", mode: MOUNT}}
        /local: {{source: "local://shelf", mode: MOUNT}}
        ~/.cache/models: {{source: "s3://{bucket}/data/deep", mode: MOUNT_CACHED}}
        relative/to/workdir: {{source: "local://shelf", mode: MOUNT}}
    """
    run = """
        set -e
        cat /s3-copy/deep/two /s3-file ~/s3-home/data/deep/two /local-copy/three /local/data/three; echo
        cmp /s3/one /s3-copy/one
        tail -c 5 /s3/one; echo
        seq 1 200000 > /s3/numbers
        seq 1 200000 > /local/numbers
        cp /s3/numbers ~/again && cmp ~/again /local/numbers
        cat ~/.cache/models/two ./relative/to/workdir/data/three; echo
        if cat /s3/none; then exit 1; fi
        echo changed > /s3-copy/deep/two
        echo done
    """
    ended = jobs.until_ended(controller, jobs.launch(controller, mounts, run))
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    log = controller.log(ended["job_id"])
    assert "\ntwotoptwothreethree\n" in log
    assert "\ntwothree\n" in log
    numbers = b"".join(b"%d\n" % i for i in range(1, 200_001))
    assert s3.objects(bucket)["data/numbers"] == numbers
    assert (shelf / "numbers").read_bytes() == numbers
    assert s3.objects(bucket)["data/deep/two"] == b"two"


@pytest.mark.fuse
def test_local_files__reach_the_machine_and_the_bucket(
    controller: Controller, s3: S3Server, jobs: Jobs, tmp_path: Path
) -> None:
    work, data, settings, name = tmp_path / "work", tmp_path / "data", tmp_path / "settings.toml", s3.new_name()
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "big").write_bytes(os.urandom(200_000))
    (data / "empty").touch()
    settings.write_text("a = 1\n")
    work.mkdir()
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / ".gitignore").write_text("*.log\n")
    (work / "train.py").write_text("print('trained')\n")
    (work / "noise.log").write_text("not sent")
    mounts = f"""
        /from-bucket: {{name: {name}, store: s3, source: {data}, mode: MOUNT}}
        /several: {{name: {name}-2, source: [{data}, {settings}], mode: MOUNT}}
        ~/.config/tool/settings.toml: {settings}
        /opt/data: {data}
        ~/.config/x: {data}
    """
    run = """
        set -e
        echo the workdir: $(ls -A)
        python3 train.py
        cat ~/.config/tool/settings.toml
        for d in /from-bucket /opt/data ~/.config/x /several/data; do sha256sum < $d/sub/big; [ -f $d/empty ]; done
        cat /several/settings.toml
    """
    ended = jobs.until_ended(controller, jobs.launch(controller, mounts, run, more=f"workdir: {work}"))
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    log = controller.log(ended["job_id"])
    assert "the workdir: .gitignore train.py\ntrained\na = 1\n" in log
    assert log.count(hashlib.sha256((data / "sub" / "big").read_bytes()).hexdigest()) == 4
    assert log.count("a = 1\n") == 2
    assert jobs.digests(s3.objects(name)) == {
        "sub/big": hashlib.sha256((data / "sub" / "big").read_bytes()).hexdigest(),
        "empty": hashlib.sha256(b"").hexdigest(),
    }


@pytest.mark.fuse
def test_last_checkpoint__is_reported_as_durable(controller: Controller, s3: S3Server, jobs: Jobs) -> None:
    name = s3.new_name()
    run = """
        python3 - <<'END'
        import os
        from perdure.checkpoint import save_checkpoint

        @save_checkpoint("/ckpt")
        def save(step):
            with open("/ckpt/model-%d.pt" % step, "wb") as file:
                file.write(os.urandom(1_000_000))

        for step in (10, 20):
            save(step)
        END
    """
    job = jobs.launch(controller, f"/ckpt: {{name: {name}, store: s3, mode: MOUNT_CACHED}}", run)
    ended = jobs.until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    durable = [one["data"]["step"] for one in ended["timeline"] if one["kind"] == "checkpoint.durable"]
    assert durable[-1] == 20
    assert durable.count(20) == 1
    assert "model-20.pt" in s3.objects(name)
