"""Mounts that are made, lost, adopted and removed: real rclone over FUSE, local and S3 buckets."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from integration.storage.buckets import Bucket, LocalBucket, S3Bucket
from integration.storage.conditions import Until
from integration.storage.node import Node
from perdure.agent.storage import fuse
from perdure.agent.storage.mounts import MountError, Mounts

pytestmark = pytest.mark.fuse


def _rclone_pid(node: Node) -> int:
    (pid,) = node.pids()
    return pid


def _agent_dies(mounts: Mounts) -> None:
    """Drop the object as SIGKILL of the agent does: its port is free, and its rclone has no parent object."""
    if mounts._tokens._server is not None:
        mounts._tokens._server.shutdown()
        mounts._tokens._server.server_close()
    for bucket in mounts._buckets:
        bucket._process._child = None  # type: ignore[attr-defined]


def test_mount__reads_a_file_of_the_bucket(node: Node, bucket: Bucket) -> None:
    bucket.put("runs/7/config.json", b"{}")
    mounts = node.mounts(node.spec(bucket, prefix="runs"))
    mounts.mount_all()
    assert Path(node.spec(bucket)["path"], "7/config.json").read_bytes() == b"{}"
    assert mounts.lost_paths() == []
    assert mounts.snapshot() == [
        {"path": node.spec(bucket)["path"], "mode": "MOUNT_CACHED", "state": "mounted", "pending": 0}
    ]


def test_mount__is_idempotent(node: Node, local_bucket: LocalBucket) -> None:
    mounts = node.mounts(node.spec(local_bucket))
    mounts.mount_all()
    pid = _rclone_pid(node)
    mounts.mount_all()
    assert _rclone_pid(node) == pid


def test_plain_mount__has_the_object_in_the_bucket_when_close_returns(node: Node, bucket: Bucket) -> None:
    mounts = node.mounts(node.spec(bucket, mode="MOUNT"))
    mounts.mount_all()
    body = os.urandom(1_000_000)
    path = Path(node.spec(bucket)["path"], "model.tmp")
    path.write_bytes(body)
    os.replace(path, path.with_suffix(".pt"))
    assert bucket.read("model.pt") == body
    assert bucket.read("model.tmp") is None
    mounts.flush(0.0)
    assert mounts.describe() == [{"path": str(path.parent), "mode": "MOUNT", "cache_dir": None, "rc_socket": None}]


def test_plain_mount__reports_a_removed_bucket_to_the_writer(node: Node, s3_bucket: S3Bucket) -> None:
    node.mounts(node.spec(s3_bucket, mode="MOUNT")).mount_all()
    s3_bucket.remove()
    with pytest.raises(OSError, match="Input/output error"):
        Path(node.spec(s3_bucket)["path"], "model.pt").write_bytes(b"weights")


def test_read_only_mount__rejects_writes(node: Node, bucket: Bucket) -> None:
    node.mounts(node.spec(bucket, read_only=True)).mount_all()
    with pytest.raises(OSError, match="Read-only"):
        Path(node.spec(bucket)["path"], "x").write_bytes(b"x")


@pytest.mark.parametrize("into", ["", "/"])
def test_copy__of_a_directory(node: Node, bucket: Bucket, into: str) -> None:
    bucket.put("data/a.txt", b"a")
    bucket.put("data/sub/b.txt", b"b")
    path = node.directory / "deep" / "data"
    mounts = node.mounts(node.spec(bucket, mode="COPY", prefix="data", path=f"{path}{into}"))
    mounts.mount_all()
    assert (path / "a.txt").read_bytes() == b"a"
    assert (path / "sub/b.txt").read_bytes() == b"b"
    assert mounts.snapshot()[0]["state"] == "copied"
    assert mounts.lost_paths() == []
    assert mounts.describe() == []


def test_copy__of_one_object(node: Node, bucket: Bucket) -> None:
    bucket.put("data/a.txt", b"a")
    as_file = node.spec(bucket, mode="COPY", prefix="data/a.txt", path=str(node.directory / "renamed.txt"))
    into = node.spec(bucket, mode="COPY", prefix="data/a.txt", path=f"{node.directory}/folder/")
    node.mounts(as_file, into).mount_all()
    assert (node.directory / "renamed.txt").read_bytes() == b"a"
    assert (node.directory / "folder/a.txt").read_bytes() == b"a"


def test_copy__of_nothing_is_an_error(node: Node, bucket: Bucket) -> None:
    with pytest.raises(MountError, match="nowhere"):
        node.mounts(node.spec(bucket, mode="COPY", prefix="nowhere", path=str(node.directory / "x"))).mount_all()


def test_mount_point__with_files_is_rejected_and_kept(node: Node, bucket: Bucket) -> None:
    target = Path(node.spec(bucket)["path"])
    target.mkdir()
    (target / "precious").write_text("data")
    with pytest.raises(MountError, match=r"not empty \(it holds precious\)"):
        node.mounts(node.spec(bucket)).mount_all()
    assert (target / "precious").read_text() == "data"
    assert node.pids() == []


def test_mount_point__that_is_a_file_is_rejected(node: Node, local_bucket: LocalBucket) -> None:
    Path(node.spec(local_bucket)["path"]).write_text("a file")
    with pytest.raises(MountError, match="File exists"):
        node.mounts(node.spec(local_bucket)).mount_all()


def test_missing_bucket__is_an_error_rather_than_an_empty_directory(node: Node, bucket: Bucket) -> None:
    bucket.remove()
    mounts = node.mounts(node.spec(bucket, prefix="runs"))
    with pytest.raises(MountError, match="create it"):
        mounts.mount_all()
    assert node.mountpoints() == []


def test_empty_bucket__can_be_mounted(node: Node, bucket: Bucket) -> None:
    node.mounts(node.spec(bucket, prefix="nothing/here/yet")).mount_all()
    assert os.listdir(node.spec(bucket)["path"]) == []


def test_options__unknown_one_is_rejected(node: Node, local_bucket: LocalBucket) -> None:
    with pytest.raises(MountError, match="unknown option vfs_typo"):
        node.mounts(node.spec(local_bucket, options={"vfs_typo": 1})).mount_all()


def test_options__are_all_supported_by_rclone(node: Node, local_bucket: LocalBucket) -> None:
    options = {
        "transfers": 8,
        "buffer_size": "32M",
        "vfs_cache_max_size": "20G",
        "vfs_cache_max_age": "1h",
        "vfs_read_ahead": "16M",
        "vfs_read_chunk_size": "32M",
        "vfs_read_chunk_streams": 16,
        "vfs_write_back": "0s",
        "read_only": False,
    }
    mounts = node.mounts(node.spec(local_bucket, options=options))
    mounts.mount_all()
    write_back_ns = mounts._buckets[0].rc.call("vfs/stats")["opt"]["WriteBack"]  # type: ignore[attr-defined]
    assert write_back_ns > 0, "a write-back of 0 forgets uploads that fail"


def test_secrets__are_in_no_argument_list_and_no_file(node: Node, s3_bucket: S3Bucket) -> None:
    mounts = node.mounts(node.spec(s3_bucket), node.spec(s3_bucket, mode="MOUNT", path=str(node.directory / "plain")))
    mounts.mount_all()
    Path(node.spec(s3_bucket)["path"], "x").write_bytes(b"x")
    mounts.flush(None)
    secret = s3_bucket.backend["secret_access_key"].encode()
    pids = node.pids()
    assert len(pids) == 2
    for pid in pids:
        assert secret in Path(f"/proc/{pid}/environ").read_bytes()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert secret not in Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
    for path in node.state_dir.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()
    socket = Path(mounts.describe()[0]["rc_socket"])
    assert socket.parent.stat().st_mode & 0o077 == 0


def test_rclone__has_its_own_session(node: Node, local_bucket: LocalBucket) -> None:
    node.mounts(node.spec(local_bucket)).mount_all()
    pid = _rclone_pid(node)
    assert os.getsid(pid) == pid == os.getpgid(pid)


def test_killed_rclone__is_reported_and_nothing_is_written_beside_the_bucket(
    node: Node, local_bucket: LocalBucket, until: Until
) -> None:
    mounts = node.mounts(node.spec(local_bucket))
    mounts.mount_all()
    path = node.spec(local_bucket)["path"]
    os.kill(_rclone_pid(node), signal.SIGKILL)
    assert until(mounts.lost_paths) == [path]
    assert mounts.snapshot()[0]["state"] == "lost"
    with pytest.raises(OSError, match="not connected"):
        Path(path, "x").write_bytes(b"x")


@pytest.mark.skipif(os.geteuid() != 0, reason="the guard under a mount needs root")
def test_unmounted_path__is_reported_and_rejects_writes(node: Node, local_bucket: LocalBucket, until: Until) -> None:
    mounts = node.mounts(node.spec(local_bucket))
    mounts.mount_all()
    path = node.spec(local_bucket)["path"]
    os.kill(_rclone_pid(node), signal.SIGTERM)  # rclone unmounts by itself
    assert until(mounts.lost_paths) == [path]
    until(lambda: not node.pids())
    with pytest.raises(OSError, match="Read-only"):
        Path(path, "x").write_bytes(b"x")


def test_remount__uploads_the_cache_of_a_killed_rclone(node: Node, bucket: Bucket, until: Until) -> None:
    mounts = node.mounts(node.spec(bucket, options={"vfs_write_back": "1h"}))
    mounts.mount_all()
    path = Path(node.spec(bucket)["path"])
    (path / "sub").mkdir()
    body = os.urandom(300_000)
    (path / "sub/model.pt").write_bytes(body)
    os.kill(_rclone_pid(node), signal.SIGKILL)
    until(mounts.lost_paths)
    assert bucket.read("sub/model.pt") is None
    mounts.mount_all()
    assert mounts.lost_paths() == []
    mounts.flush(None)
    assert bucket.read("sub/model.pt") == body
    assert (path / "sub/model.pt").read_bytes() == body


@pytest.mark.parametrize("harm", ["emptied", "removed"])
def test_remount__uploads_a_file_with_a_truncated_record(
    node: Node, local_bucket: LocalBucket, until: Until, harm: str
) -> None:
    mounts = node.mounts(node.spec(local_bucket, options={"vfs_write_back": "1h"}))
    mounts.mount_all()
    body = os.urandom(300_000)
    Path(node.spec(local_bucket)["path"], "model.pt").write_bytes(body)
    os.kill(_rclone_pid(node), signal.SIGKILL)
    until(mounts.lost_paths)
    (record,) = node.state_dir.rglob("vfsMeta/**/model.pt")
    if harm == "emptied":
        record.write_bytes(b"")
    else:
        record.unlink()
    mounts.mount_all()
    mounts.flush(None)
    assert local_bucket.read("model.pt") == body


def test_remount__never_uploads_a_half_downloaded_file(node: Node, local_bucket: LocalBucket, until: Until) -> None:
    body = os.urandom(40_000_000)
    local_bucket.put("data.bin", body)
    spec = node.spec(local_bucket, options={"vfs_read_chunk_size": "1M", "buffer_size": "0"})
    mounts = node.mounts(spec)
    mounts.mount_all()
    with open(Path(spec["path"], "data.bin"), "rb") as file:
        file.seek(39_000_000)
        assert file.read(1000) == body[39_000_000:39_001_000]
    os.kill(_rclone_pid(node), signal.SIGKILL)
    until(mounts.lost_paths)
    (record,) = node.state_dir.rglob("vfsMeta/**/data.bin")
    record.write_bytes(b"")
    mounts.mount_all()
    mounts.flush(None)
    assert local_bucket.read("data.bin") == body
    assert Path(spec["path"], "data.bin").read_bytes() == body


def test_restarted_agent__adopts_a_live_mount(node: Node, bucket: Bucket, until: Until) -> None:
    spec = node.spec(bucket, options={"vfs_write_back": "1h"})
    first = node.mounts(spec)
    first.mount_all()
    Path(spec["path"], "model.pt").write_bytes(b"weights")
    pid = _rclone_pid(node)
    _agent_dies(first)
    second = node.mounts(spec)
    second.mount_all()
    assert _rclone_pid(node) == pid
    assert second.lost_paths() == []
    until(lambda: second.snapshot()[0]["pending"] == 1)  # the kernel releases a closed file when it comes to it
    second.flush(None)
    assert bucket.read("model.pt") == b"weights"
    second.unmount_all()
    assert node.pids() == []


def test_restarted_agent__remounts_if_rclone_died(node: Node, bucket: Bucket, until: Until) -> None:
    spec = node.spec(bucket, options={"vfs_write_back": "1h"})
    first = node.mounts(spec)
    first.mount_all()
    Path(spec["path"], "model.pt").write_bytes(b"weights")
    os.kill(_rclone_pid(node), signal.SIGKILL)
    until(first.lost_paths)
    _agent_dies(first)
    second = node.mounts(spec)
    second.mount_all()
    second.flush(None)
    assert bucket.read("model.pt") == b"weights"


def test_restarted_agent__replaces_a_hung_rclone(node: Node, local_bucket: LocalBucket) -> None:
    spec = node.spec(local_bucket, options={"vfs_write_back": "1h"})
    first = node.mounts(spec)
    first.mount_all()
    Path(spec["path"], "model.pt").write_bytes(b"weights")
    hung = _rclone_pid(node)
    os.kill(hung, signal.SIGSTOP)
    _agent_dies(first)
    second = node.mounts(spec)
    second.mount_all()
    assert _rclone_pid(node) != hung
    second.flush(None)
    assert local_bucket.read("model.pt") == b"weights"


def test_restarted_agent__unmounts_everything_if_stopped(node: Node, local_bucket: LocalBucket) -> None:
    first = node.mounts(node.spec(local_bucket))
    first.mount_all()
    _agent_dies(first)
    second = node.mounts(node.spec(local_bucket), with_rclone=False)
    second.unmount_all()
    assert node.pids() == []
    assert node.mountpoints() == []


def test_unmount__leaves_nothing(node: Node, bucket: Bucket) -> None:
    mounts = node.mounts(
        node.spec(bucket),
        node.spec(bucket, mode="MOUNT", prefix="other", path=str(node.directory / "plain")),
    )
    mounts.mount_all()
    Path(node.spec(bucket)["path"], "x").write_bytes(b"x")
    mounts.flush(None)
    assert len(node.pids()) == 2
    mounts.unmount_all()
    assert node.pids() == []
    assert node.mountpoints() == []
    assert [path for path in node.state_dir.rglob("*") if path.name != "mounts"] == []
    assert os.listdir(node.spec(bucket)["path"]) == []
    mounts.unmount_all()


def test_unmount__removes_a_busy_mount(node: Node, local_bucket: LocalBucket) -> None:
    mounts = node.mounts(node.spec(local_bucket))
    mounts.mount_all()
    holder = subprocess.Popen(["sleep", "60"], cwd=node.spec(local_bucket)["path"])
    try:
        mounts.unmount_all()
        assert node.pids() == []
        assert node.mountpoints() == []
    finally:
        holder.kill()
        holder.wait()


def test_unmount__keeps_a_dirty_cache(node: Node, local_bucket: LocalBucket) -> None:
    spec = node.spec(local_bucket, options={"vfs_write_back": "1h"})
    mounts = node.mounts(spec)
    mounts.mount_all()
    Path(spec["path"], "model.pt").write_bytes(b"weights")
    mounts.unmount_all()
    assert local_bucket.read("model.pt") is None
    again = node.mounts(spec)
    again.mount_all()
    again.flush(None)
    assert local_bucket.read("model.pt") == b"weights"


def test_foreign_mount__is_rejected_and_kept(node: Node, local_bucket: LocalBucket) -> None:
    theirs = node.mounts(node.spec(local_bucket))
    theirs.mount_all()
    mine = Mounts(
        [node.spec(local_bucket)], state_dir=node.directory / "state-2", rclone=node.rclone, log=node.lines.append
    )
    with pytest.raises(MountError, match="is mounted there already"):
        mine.mount_all()
    mine.unmount_all()
    assert theirs.lost_paths() == []


def test_state_directory__may_have_a_long_path(node: Node, local_bucket: LocalBucket) -> None:
    deep = node.directory / ("d" * 120)
    mounts = Mounts([node.spec(local_bucket)], state_dir=deep, rclone=node.rclone, log=node.lines.append)
    try:
        mounts.mount_all()
        socket = mounts.describe()[0]["rc_socket"]
        assert len(socket) < 108
        Path(node.spec(local_bucket)["path"], "x").write_bytes(b"x")
        mounts.flush(None)
    finally:
        mounts.unmount_all()
    assert not Path(socket).parent.exists()


def test_mount_path__may_contain_spaces(node: Node, local_bucket: LocalBucket) -> None:
    spec = node.spec(local_bucket, path=str(node.directory / "my check points"))
    mounts = node.mounts(spec)
    mounts.mount_all()
    assert spec["path"] in fuse.mounts_by_path()
    assert mounts.lost_paths() == []
