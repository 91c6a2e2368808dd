"""The workdir, uploads, mounts, and the agent as it is shipped: one file, run by an old Python."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node
from perdure.agent.storage.fuse import fuse_problem
from perdure.controller.clouds.bootstrap.artifacts import build_agent, build_artifacts, find_rclone
from perdure.controller.runtime.clock import SystemClock

now = SystemClock().now

OLDEST_PYTHON = next(iter(sorted(Path("/root/.pyenv/versions").glob("3.9.*/bin/python"))), None)


def upload(controller: Controller, files: dict[str, bytes], **extra: tarfile.TarInfo) -> str:
    """Put a tar.gz on the controller; returns its digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(member, io.BytesIO(content))
        for member in extra.values():
            tar.addfile(member)
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    controller.files[digest] = packed.getvalue()
    return digest


def finish(controller: Controller, node: Node, run: str, **spec: Any) -> dict[str, Any]:
    controller.spec.update(run=run, **spec)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    report: dict[str, Any] = controller.until_phase("ended")
    return report


def test_uploads__are_unpacked_at_their_paths(controller: Controller, node: Node, tmp_path: Path) -> None:
    workdir = upload(controller, {"train.sh": b"echo training\n", "data/x": b"1"})
    vimrc = upload(controller, {"whatever": b"set nu\n"})
    folder = upload(controller, {"a/b": b"deep\n"})
    report = finish(
        controller,
        node,
        f"./train.sh && cat data/x ~/.vimrc {tmp_path}/abs/a/b rel/a/b",
        workdir={"upload": workdir},
        uploads=[
            {"path": "~/.vimrc", "upload": vimrc, "is_file": True},
            {"path": f"{tmp_path}/abs", "upload": folder, "is_file": False},
            {"path": "rel", "upload": folder, "is_file": False},
        ],
    )
    assert report["exit_code"] == 0
    controller.until_log(b"training\n1set nu\ndeep\ndeep\n")


def test_upload__that_leaves_its_folder_is_contained(controller: Controller, node: Node) -> None:
    link = tarfile.TarInfo("dataset")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    digest = upload(controller, {"../../outside": b"x", "inside": b"y"}, link=link)
    report = finish(controller, node, "ls -A; readlink dataset", workdir={"upload": digest})
    assert report["exit_code"] == 0
    controller.until_log(b"dataset\ninside\n/etc\n")
    assert bytes(controller.log) == b"dataset\ninside\n/etc\n"
    assert not (node.home.parent / "outside").exists()


def test_upload__missing_fails_the_mounts_stage(controller: Controller, node: Node) -> None:
    report = finish(controller, node, "true", workdir={"upload": "0" * 64})
    assert report["failed_stage"] == "mounts"
    assert "404" in report["message"]


def test_workdir__is_cloned_from_git(controller: Controller, node: Node, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    commands = ["init -q -b main", "commit -q --allow-empty -m one", "checkout -q -b other"]
    repo.mkdir()
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for command in commands:
        subprocess.run(["git", *identity, *command.split()], cwd=repo, check=True)
    (repo / "file").write_text("from git\n")
    subprocess.run(["git", "add", "file"], cwd=repo, check=True)
    subprocess.run(["git", *identity, "commit", "-q", "-m", "two"], cwd=repo, check=True)
    subprocess.run(["git", "checkout", "-q", "main"], cwd=repo, check=True)
    report = finish(controller, node, "cat file", workdir={"git": str(repo), "ref": "other"})
    assert report["exit_code"] == 0
    controller.until_log(b"from git\n")


def test_workdir__clone_failure_fails_the_mounts_stage(controller: Controller, node: Node, tmp_path: Path) -> None:
    report = finish(controller, node, "true", workdir={"git": str(tmp_path / "nowhere"), "ref": "main"})
    assert report["failed_stage"] == "mounts"
    assert "nowhere" in report["message"]


def test_mount__of_a_local_bucket_without_rclone_is_a_link(controller: Controller, node: Node, tmp_path: Path) -> None:
    """Without rclone it is a link, and the report says so."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "old").write_text("kept\n")
    node.env["PATH"] = "/usr/bin:/bin"
    mount = {
        "path": f"{tmp_path}/mnt", "mode": "MOUNT_CACHED", "bucket": str(bucket), "prefix": "", "read_only": False,
        "rclone": {"type": "local"}, "options": {},
    }  # fmt: skip
    report = finish(controller, node, f"cat {tmp_path}/mnt/old; echo new > {tmp_path}/mnt/new", mounts=[mount])
    assert (report["exit_code"], report["failed_stage"], report["message"]) == (0, None, "")
    assert [(m["path"], m["mode"]) for m in report["mounts"]] == [(f"{tmp_path}/mnt", "MOUNT_CACHED")]
    assert (bucket / "new").read_text() == "new\n"
    controller.until_log(b"kept\n")
    controller.direct("stop")
    assert node.wait_for_agent() == 0
    assert not (tmp_path / "mnt").is_mount()
    assert not (tmp_path / "mnt").is_symlink()


@pytest.mark.skipif(OLDEST_PYTHON is None, reason="no Python 3.9 on this machine")
def test_zipapp__runs_on_python_3_9(controller: Controller, node: Node, tmp_path: Path) -> None:
    agent = build_agent(tmp_path / "artifacts")
    node.python = [str(OLDEST_PYTHON), str(agent.path)]
    node.env["PYTHONPATH"] = ""
    (node.home / "ticker.py").write_text("import time\nfor i in range(20): print(i, flush=True); time.sleep(0.05)\n")
    run = f"{OLDEST_PYTHON} -c 'import perdure.checkpoint; print(perdure.checkpoint.__file__)' && python3 ~/ticker.py"
    controller.spec.update(setup="(sleep 600 &)", run=run, workdir={"upload": upload(controller, {"x": b"y"})})
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until_log(b"\n5\n")
    node.kill_agent()
    node.start()
    report = controller.until_phase("ended")
    assert (report["exit_code"], report["failed_stage"]) == (0, None)
    controller.until_log(b"\n19\n")
    assert bytes(controller.log).startswith(str(node.state_dir / "lib").encode())
    assert controller.hellos[0]["agent"] == "0.1.0"
    assert node.workload() == []


@pytest.mark.fuse
@pytest.mark.skipif(fuse_problem() is not None or find_rclone() is None, reason="needs FUSE and rclone")
@pytest.mark.parametrize("ending", ["by itself", "drained", "drained by an agent that was killed in between"])
def test_cached_mount__is_flushed_at_every_kind_of_end(
    controller: Controller, node: Node, tmp_path: Path, ending: str
) -> None:
    """The write-back is so late that only the flush can have uploaded the file."""
    bucket, artifacts_dir = tmp_path / "bucket", tmp_path / "artifacts"
    bucket.mkdir()
    served = build_artifacts(artifacts_dir)["rclone"].digest
    node.env["PERDURE_ARTIFACTS_DIR"] = str(artifacts_dir)
    mount = {
        "path": f"{tmp_path}/mnt", "mode": "MOUNT_CACHED", "bucket": str(bucket), "prefix": "", "read_only": False,
        "rclone": {"type": "local"}, "options": {"vfs_write_back": "1h"},
    }  # fmt: skip
    save = f"head -c 3000000 /dev/zero > {tmp_path}/mnt/checkpoint"
    run = save if ending == "by itself" else f"trap '{save}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    controller.spec.update(run=run, mounts=[mount], artifacts={"rclone": served})
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    if ending != "by itself":
        controller.until_log(b"up\n")
        controller.direct("drain", deadline=now() + 20)
    if ending.endswith("in between"):
        node.until_file(node.state_dir / "stages/run/stop.json")
        node.kill_agent()
        node.start()
    report = controller.until_phase("ended", 40)
    assert (report["failed_stage"], report["interrupted"]) == (None, ending != "by itself")
    assert (bucket / "checkpoint").stat().st_size == 3_000_000
    assert report["mounts"] == [{"path": f"{tmp_path}/mnt", "mode": "MOUNT_CACHED", "state": "mounted", "pending": 0}]
    controller.direct("stop")
    assert node.wait_for_agent() == 0
    assert not (tmp_path / "mnt").is_mount()
