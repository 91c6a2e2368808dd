"""Whether a bucket has a file, on a real rclone mount if possible, and with metadata like rclone's."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.checkpoint import CheckpointUnavailable, is_durable, latest, load_checkpoint, save_checkpoint, steps
from perdure.checkpoint.decorators import LoadFunction
from perdure.checkpoint.durability import mount_table, status
from perdure.checkpoint.durability.file_version import UNKNOWN, FileVersion
from support.helpers.module_time import replace_time
from unit.checkpoint.training_program import Restart

RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
NO_MOUNTS = not (RCLONE and shutil.which("fusermount3") and os.access("/dev/fuse", os.R_OK | os.W_OK))


def until(condition: Callable[[], object], *, timeout_s: float = 20.0) -> None:
    """Wait for the asynchronous work of rclone."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(f"not within {timeout_s} s")


def list_mount(run_dir: Path, path: Path, **fields: str) -> None:
    row = {"path": str(path), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None, **fields}
    (run_dir / "mounts.json").write_text(json.dumps([row]))


def go_time(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"


def test_is_durable__on_a_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert is_durable([str(tmp_path / "a")]) is True
    assert is_durable([str(tmp_path / "a"), str(tmp_path / "b")]) is False
    assert is_durable([]) is True


@dataclass
class MetadataNote:
    """Writes rclone's note of a file."""

    path: Path
    data: str  # the file's path on the mount
    cache: Path

    def __call__(self, content: str | None) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        if content is not None:
            self.path.write_text(content)


class TestMetadata:
    """rclone's metadata of a file. The mount is a directory of the test."""

    @pytest.fixture
    def note(self, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> MetadataNote:
        """Writes the note of `data/model.pt`; None removes it."""
        mountpoint = tmp_path / "mnt"
        (mountpoint / "data").mkdir(parents=True)
        (mountpoint / "data" / "model.pt").write_bytes(b"x")
        list_mount(run_dir, mountpoint, cache_dir=str(tmp_path / "cache"))
        table = tmp_path / "mountinfo"
        table.write_text(f"44 27 0:41 / {mountpoint} rw - fuse.rclone :s3{{4vgl3}}:bucket/folder rw\n")
        monkeypatch.setattr(mount_table, "_TABLE", str(table))
        path = tmp_path / "cache" / "vfsMeta" / ":s3{4vgl3}" / "bucket" / "folder" / "data" / "model.pt"

        return MetadataNote(path, str(mountpoint / "data" / "model.pt"), tmp_path / "cache")

    def test_is_durable__by_rclones_metadata(self, note: MetadataNote) -> None:
        for content, expected in (
            ('{"Size": 1, "Fingerprint": "1,2026", "Dirty": false}', True),
            ('{"Size": 1, "Fingerprint": "", "Dirty": true}', False),
            ('{"Size": 1, "Fingerprint": "1,2026", "Dirty": true}', False),
            ('{"Size": 1, "Fingerprint": "", "Dirty": false}', False),
            ("", False),  # incomplete metadata is never accepted, however often it is read
            ('{"Size": 1, "Finger', False),
            (None, True),  # evicted after its upload, or never written here
        ):
            note(content)
            assert is_durable([note.data]) is expected, content

    def test_is_durable__only_of_the_committed_content(self, note: MetadataNote) -> None:
        """Another node's older object, or a later save's, has the same name and may have the same size."""
        committed = FileVersion.from_stat(os.stat(note.data))
        clean = {"Size": 1, "Fingerprint": "1,2026", "Dirty": False, "ModTime": "2026-01-01T00:00:00Z"}
        os.utime(note.data, ns=(0, committed.earliest_ns - 5_000_000_000))
        for content in (None, json.dumps(clean)):
            note(content)
            assert is_durable([note.data]) is True, "whatever it is"
            assert is_durable({note.data: None}) is True
            assert is_durable({note.data: committed}) is False, content
            assert is_durable({note.data: UNKNOWN}) is None, "an older manifest does not tell"
        note(json.dumps(clean | {"ModTime": go_time(committed.earliest_ns)}))
        assert is_durable({note.data: committed}) is True, "the record has it"
        note(json.dumps(clean))
        os.utime(note.data, ns=(0, committed.earliest_ns))
        assert is_durable({note.data: committed}) is True, "the bucket has it"
        note(json.dumps(clean | {"Dirty": True}))
        assert is_durable({note.data: committed}) is False

    def test_is_durable__of_a_file_that_has_grown(self, note: MetadataNote) -> None:
        data = Path(note.data)
        data.write_bytes(b"step 1")
        committed = FileVersion.from_stat(data.stat())._replace(crc32=zlib.crc32(b"step 1"))
        note(None)
        for content, expected in ((b"step 1, step 2", True), (b"step 2, step 3", False), (b"step", False)):
            data.write_bytes(content)
            os.utime(data, ns=(0, committed.latest_ns + 1_000_000_000))
            assert is_durable({note.data: committed}) is expected
            assert is_durable({note.data: committed._replace(crc32=-1)}) is False

    def test_wait_durable__ends_when_a_file_was_overwritten(self, note: MetadataNote) -> None:
        committed = FileVersion.from_stat(os.stat(note.data))
        os.utime(note.data, ns=(0, committed.latest_ns + 1_000_000_000))
        note(None)
        assert status.wait_durable({note.data: committed}, timeout_s=None) is False

    @pytest.mark.parametrize("name", ["a\u201bb", "a\u2424"])
    def test_is_durable__unknown_where_the_record_may_have_another_name(self, note: MetadataNote, name: str) -> None:
        note("{}")
        path = Path(note.data).with_name(name)
        path.write_bytes(b"x")
        assert is_durable([str(path)]) is None

    def test_is_durable__rereads_incomplete_metadata(self, note: MetadataNote, monkeypatch: pytest.MonkeyPatch) -> None:
        note("")
        whole = lambda _: note('{"Fingerprint": "1", "Dirty": false}')  # noqa: E731
        replace_time(monkeypatch, status, sleep=whole)
        assert is_durable([note.data]) is True

    def test_is_durable__unknown_without_the_cache(self, note: MetadataNote) -> None:
        note("{}")
        shutil.rmtree(note.cache)
        assert is_durable([note.data]) is None

    def test_is_durable__false_for_a_missing_file(self, note: MetadataNote) -> None:
        os.unlink(note.data)
        assert is_durable([note.data]) is False


class RcloneMounts:
    """Mounts buckets of this machine with rclone."""

    def __init__(self, tmp_path: Path, run_dir: Path) -> None:
        self.tmp_path, self.run_dir = tmp_path, run_dir
        self.processes: list[subprocess.Popen[bytes]] = []
        self.mountpoints: list[Path] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """rclone, for the newest mount."""
        return self.processes[-1]

    def __call__(self, *flags: str, cached: bool = True) -> tuple[Path, Path]:
        """Mount a bucket; returns the mountpoint and the bucket."""
        assert RCLONE is not None
        bucket, mountpoint, cache = (self.tmp_path / name for name in ("bucket", "mnt", "cache"))
        for folder in (bucket, mountpoint):
            folder.mkdir()
        config = self.tmp_path / "rclone.conf"
        config.write_text("[store]\ntype = local\n")
        command = [RCLONE, "mount", f"store:{bucket}", mountpoint, "--config", config, "--cache-dir", cache, *flags]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
        self.processes.append(process)
        self.mountpoints.append(mountpoint)
        until(lambda: os.path.ismount(mountpoint) or process.poll() is not None)
        assert process.poll() is None, "rclone did not mount"
        mode = {"mode": "MOUNT_CACHED", "cache_dir": str(cache)} if cached else {"mode": "MOUNT"}
        list_mount(self.run_dir, mountpoint, **mode)
        return mountpoint, bucket

    def close(self) -> None:
        for mountpoint in self.mountpoints:
            subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False, capture_output=True)
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture
def mounted(tmp_path: Path, run_dir: Path) -> Iterator[RcloneMounts]:
    mounts = RcloneMounts(tmp_path, run_dir)
    yield mounts
    mounts.close()


@pytest.mark.fuse
@pytest.mark.skipif(NO_MOUNTS, reason="needs rclone, fusermount3 and /dev/fuse")
class TestRealMount:
    @staticmethod
    def await_uploads(directory: Path) -> None:
        """Wait until the bucket has everything, without reading through the mount, which would postpone the uploads."""
        paths = [str(path) for path in directory.rglob("*") if path.is_file()]
        until(lambda: is_durable(paths))

    @staticmethod
    def functions(directory: Path, keep: int = 1) -> tuple[Callable[[int], None], LoadFunction[bytes]]:
        @save_checkpoint(directory, max_checkpoints=keep)
        def save(step: int) -> None:
            (directory / f"model_{step}.pt").write_bytes(b"%d" % step * 100_000)

        @load_checkpoint(directory)
        def load(step: int) -> bytes:
            return (directory / f"model_{step}.pt").read_bytes()[:1]

        return save, load

    def test_real_mount__with_write_back(self, mounted: RcloneMounts, run_dir: Path, restart: Restart) -> None:
        mountpoint, bucket = mounted("--vfs-cache-mode", "full", "--vfs-write-back", "1s", "--dir-cache-time", "10s")
        directory = mountpoint / "run"
        save, load = self.functions(directory)
        save(1)
        assert (bucket / "run" / "model_1.pt").exists()  # the first manifest waits for its files
        assert not list((bucket / "run").glob(".perdure/*.json"))
        save(2)
        assert is_durable([str(directory / "model_2.pt")]) is False
        assert not (bucket / "run" / "model_2.pt").exists()
        save(3)
        assert [info.step for info in steps(directory)] == [3, 2, 1]  # no step is in the bucket, so no step is removed
        self.await_uploads(directory)
        assert (bucket / "run" / "model_3.pt").read_bytes() == (directory / "model_3.pt").read_bytes()
        assert [info.state for info in steps(directory)] == ["durable"] * 3
        assert [info.files for info in steps(directory)] == [(f"model_{step}.pt",) for step in (3, 2, 1)]
        save(4)
        assert [info.step for info in steps(directory)] == [4, 3]
        assert not (bucket / "run" / "model_1.pt").exists()
        restart()
        assert load() == b"4"
        self.await_uploads(directory)
        journal = (run_dir / "checkpoints.jsonl").read_text().splitlines()
        assert {json.loads(line)["state"] for line in journal} == {"committed", "loaded"}  # the agent adds "durable"
        # Another machine sees the same, from the bucket alone.
        assert [info.state for info in steps(bucket / "run", verify=True)] == ["committed"] * 2

    def test_real_mount__without_an_agent_verify_does_not_postpone_the_upload(
        self, mounted: RcloneMounts, run_dir: Path
    ) -> None:
        mountpoint, bucket = mounted("--vfs-cache-mode", "writes", "--vfs-write-back", "2s")
        (run_dir / "mounts.json").unlink()
        self.functions(mountpoint)[0](1)
        paths = [str(path) for path in mountpoint.rglob("*") if path.is_file()]
        assert is_durable(paths) is False
        pause = threading.Event()
        for _ in range(100):
            if is_durable(paths):
                break
            assert [info.step for info in steps(mountpoint, verify=True)] == [1]
            pause.wait(0.2)
        assert (bucket / "model_1.pt").exists()

    def test_real_mount__without_cache(self, mounted: RcloneMounts) -> None:
        mountpoint, bucket = mounted("--vfs-cache-mode", "off", cached=False)
        directory = mountpoint / "run"
        save, load = self.functions(directory)
        for step in (1, 2):
            save(step)
        assert load() == b"2"
        assert [(info.step, info.state) for info in steps(bucket / "run", verify=True)] == [(2, "committed")]

    def test_real_mount__lost_is_neither_damage_nor_a_first_run(self, mounted: RcloneMounts) -> None:
        mountpoint, _ = mounted("--vfs-cache-mode", "full")
        save, load = self.functions(mountpoint)
        save(1)
        mounted.process.send_signal(signal.SIGKILL)
        mounted.process.wait()
        for act in (lambda: save(2), load, lambda: latest(mountpoint)):
            with pytest.raises(CheckpointUnavailable):
                act()
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=True)
        with pytest.raises(CheckpointUnavailable, match="nothing is mounted there"):
            load()
