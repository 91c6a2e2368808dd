"""Whether a bucket has a file, asked of a real rclone mount where there is one, and of notes like rclone's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure.checkpoint import (
    CheckpointUnavailable,
    durability,
    is_durable,
    latest,
    load_checkpoint,
    mount_table,
    save_checkpoint,
    steps,
)

RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
NO_MOUNTS = not (RCLONE and shutil.which("fusermount3") and os.access("/dev/fuse", os.R_OK | os.W_OK))


def until(condition, *, timeout_s=20.0):
    """Wait for what rclone does in its own time."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(f"not within {timeout_s} s")


def list_mount(run_dir, path, **fields):
    row = {"path": str(path), "mode": "MOUNT_CACHED", "cache_dir": None, "rc_socket": None, **fields}
    (run_dir / "mounts.json").write_text(json.dumps([row]))


def test_plain_disk(tmp_path):
    (tmp_path / "a").write_text("x")
    assert is_durable([str(tmp_path / "a")]) is True
    assert is_durable([str(tmp_path / "a"), str(tmp_path / "b")]) is False
    assert is_durable([]) is True


def test_directory_under_an_absent_mount_is_not_used(tmp_path, run_dir):
    """Without the check a save would go to the machine's own disk, and a load would start from scratch."""
    mountpoint = tmp_path / "mnt"
    (mountpoint / "run").mkdir(parents=True)
    list_mount(run_dir, mountpoint)
    calls = []
    for act in (
        save_checkpoint(mountpoint / "run")(lambda step: calls.append(step) or 1),
        load_checkpoint(mountpoint / "run")(lambda step: calls.append(step) or 1),
        lambda step: latest(mountpoint / "run"),
        lambda step: steps(mountpoint),
    ):
        with pytest.raises(CheckpointUnavailable, match="nothing is mounted there"):
            act(1)
    assert calls == []
    beside = save_checkpoint(tmp_path / "mnt2")(lambda step: (tmp_path / "mnt2" / f"{step}").write_text("x"))
    beside(1)


def test_dangling_link_is_an_absent_mount(tmp_path, run_dir):
    (tmp_path / "mnt").symlink_to(tmp_path / "gone")
    list_mount(run_dir, tmp_path / "mnt")
    with pytest.raises(CheckpointUnavailable):
        load_checkpoint(tmp_path / "mnt" / "run")(lambda step: step)()


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]", '[{"mode": "MOUNT"}]'])
def test_unreadable_list_of_mounts_is_said(tmp_path, run_dir, content):
    (run_dir / "mounts.json").write_text(content)
    with pytest.raises(CheckpointUnavailable, match=r"mounts\.json"):
        load_checkpoint(tmp_path)(lambda step: step)()


class TestNotes:
    """The words of rclone's notes, one by one. The mount is whatever holds the test's directory."""

    @pytest.fixture
    def note(self, tmp_path, run_dir, monkeypatch):
        """Writes the note of `data/model.pt`; None removes it."""
        mountpoint = tmp_path / "mnt"
        (mountpoint / "data").mkdir(parents=True)
        (mountpoint / "data" / "model.pt").write_bytes(b"x")
        list_mount(run_dir, mountpoint, cache_dir=str(tmp_path / "cache"))
        table = tmp_path / "mountinfo"
        table.write_text(f"44 27 0:41 / {mountpoint} rw - fuse.rclone :s3{{4vgl3}}:bucket/folder rw\n")
        monkeypatch.setattr(mount_table, "_TABLE", str(table))
        path = tmp_path / "cache" / "vfsMeta" / ":s3{4vgl3}" / "bucket" / "folder" / "data" / "model.pt"

        def write(content):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_text(content)

        write.data = str(mountpoint / "data" / "model.pt")
        write.cache = tmp_path / "cache"
        return write

    def test_answers(self, note):
        for content, answer in (
            ('{"Size": 1, "Fingerprint": "1,2026", "Dirty": false}', True),
            ('{"Size": 1, "Fingerprint": "", "Dirty": true}', False),
            ('{"Size": 1, "Fingerprint": "1,2026", "Dirty": true}', False),
            ('{"Size": 1, "Fingerprint": "", "Dirty": false}', False),
            ("", False),  # half a note is no answer, however often it is read
            ('{"Size": 1, "Finger', False),
            (None, True),  # evicted after its upload, or never written here
        ):
            note(content)
            assert is_durable([note.data]) is answer, content

    def test_half_a_note_is_read_again(self, note, monkeypatch):
        note("")
        whole = lambda _: note('{"Fingerprint": "1", "Dirty": false}')  # noqa: E731
        monkeypatch.setattr(durability.time, "sleep", whole)
        assert is_durable([note.data]) is True

    def test_cache_that_can_not_be_found_is_no_answer(self, note):
        note("{}")
        shutil.rmtree(note.cache)
        assert is_durable([note.data]) is None

    def test_missing_file_is_not_durable(self, note):
        os.unlink(note.data)
        assert is_durable([note.data]) is False


class TestMountsThatNoAgentMade:
    """By the kernel's table and a process's command line, as /proc shows them."""

    @pytest.fixture
    def world(self, tmp_path, monkeypatch):
        mountpoint, proc = tmp_path / "mnt", tmp_path / "proc"
        mountpoint.mkdir()
        (mountpoint / "a").write_text("x")
        monkeypatch.setattr(mount_table, "_TABLE", str(tmp_path / "mountinfo"))
        monkeypatch.setattr(mount_table, "_PROC", str(proc))
        monkeypatch.setattr(mount_table, "_servers", {})

        def world(kind, *words, environment=()):
            (tmp_path / "mountinfo").write_text(
                f"1 0 8:1 / / rw - ext4 /dev/root rw\n44 1 0:41 / {mountpoint} rw - {kind} store:folder rw\n"
            )
            (proc / "77").mkdir(parents=True)
            (proc / "77" / "cmdline").write_bytes(b"\0".join(str(word).encode() for word in words) + b"\0")
            (proc / "77" / "environ").write_bytes(b"\0".join(line.encode() for line in environment))
            (proc / "77" / "cwd").symlink_to(tmp_path)
            return str(mountpoint / "a")

        return world

    @pytest.mark.parametrize(
        ("kind", "answer"),
        [
            ("ext4", True),
            ("nfs4", True),
            ("overlay", True),
            ("fuse.gcsfuse", True),
            ("fuse.s3fs", None),
            ("fuse", None),
        ],
    )
    def test_what_a_closed_file_is_worth(self, world, kind, answer):
        assert is_durable([world(kind)]) is answer

    @pytest.mark.parametrize("name", ["absolute", "relative"])
    def test_rclone_with_a_cache_is_asked_for_its_notes(self, world, tmp_path, name):
        mountpoint = tmp_path / "mnt" if name == "absolute" else "mnt"
        words = ("/usr/bin/rclone", "mount", "store:folder", mountpoint, "--vfs-cache-mode", "full")
        path = world("fuse.rclone", *words, f"--cache-dir={tmp_path / 'cache'}", "--rc-addr", "unix:///run/rc")
        assert durability.mount_of(path) == durability.Mount(
            str(tmp_path / "mnt"), "fuse.rclone", str(tmp_path / "cache"), "/run/rc"
        )
        note = tmp_path / "cache" / "vfsMeta" / "store" / "folder" / "a"
        note.parent.mkdir(parents=True)
        for dirty, answer in ((True, False), (False, True)):
            note.write_text(json.dumps({"Dirty": dirty, "Fingerprint": "1"}))
            assert is_durable([path]) is answer

    def test_what_the_environment_says_counts_too(self, world, tmp_path):
        path = world(
            *("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt"),
            environment=["RCLONE_VFS_CACHE_MODE=writes", "HOME=/home/me"],
        )
        found = durability.mount_of(path)
        assert found is not None
        assert found.cache_dir == "/home/me/.cache/rclone"

    def test_rclone_without_a_cache_uploads_before_a_file_is_closed(self, world, tmp_path):
        assert is_durable([world("fuse.rclone", "rclone", "mount", "store:folder", tmp_path / "mnt")]) is True

    @pytest.mark.parametrize("words", [("sshd",), ("rclone", "mount", "store:other", "/elsewhere"), ("rclone", "rcd")])
    def test_a_mount_whose_server_can_not_be_seen_is_not_known(self, world, words):
        assert is_durable([world("fuse.rclone", *words)]) is None


@pytest.fixture
def mounted(tmp_path, run_dir):
    """Mounts a bucket of this machine with rclone; gives the mountpoint, the bucket and how to kill rclone."""
    processes, mountpoints = [], []

    def mount(*flags, cached=True, environment=()):
        bucket, mountpoint, cache = (tmp_path / name for name in ("bucket", "mnt", "cache"))
        for folder in (bucket, mountpoint):
            folder.mkdir()
        config = tmp_path / "rclone.conf"
        config.write_text("[store]\ntype = local\n")
        command = [RCLONE, "mount", f"store:{bucket}", mountpoint, "--config", config, "--cache-dir", cache, *flags]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        processes.append(process)
        mountpoints.append(mountpoint)
        until(lambda: os.path.ismount(mountpoint) or process.poll() is not None)
        assert process.poll() is None, "rclone did not mount"
        mode = {"mode": "MOUNT_CACHED", "cache_dir": str(cache)} if cached else {"mode": "MOUNT"}
        list_mount(run_dir, mountpoint, **mode)
        mount.process = process
        return mountpoint, bucket

    yield mount
    for mountpoint in mountpoints:
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False, capture_output=True)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.fuse
@pytest.mark.skipif(NO_MOUNTS, reason="needs rclone, fusermount3 and /dev/fuse")
class TestRealMount:
    @staticmethod
    def await_uploads(directory):
        """Until the bucket has everything. Nothing is read through the mount meanwhile: that would postpone it."""
        paths = [str(path) for path in directory.rglob("*") if path.is_file()]
        until(lambda: is_durable(paths))

    @staticmethod
    def functions(directory, keep=1):
        @save_checkpoint(directory, max_checkpoints=keep)
        def save(step):
            (directory / f"model_{step}.pt").write_bytes(b"%d" % step * 100_000)

        @load_checkpoint(directory)
        def load(step):
            return (directory / f"model_{step}.pt").read_bytes()[:1]

        return save, load

    def test_cached(self, mounted, run_dir, restart):
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
        assert [info.step for info in steps(directory)] == [3, 2, 1]  # none is in the bucket: none goes
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
        lines = [json.loads(line) for line in (run_dir / "checkpoints.jsonl").read_text().splitlines()]
        told = [(line["step"], line["state"]) for line in lines]
        assert {(1, "durable"), (2, "durable"), (3, "durable")} <= set(told)
        assert told.index((3, "durable")) > told.index((4, "committed"))
        # Another machine sees the same, from the bucket alone.
        assert [info.state for info in steps(bucket / "run", verify=True)] == ["committed"] * 2

    def test_found_without_an_agent_and_verified_without_postponing_it(self, mounted, run_dir):
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

    def test_uncached(self, mounted):
        mountpoint, bucket = mounted("--vfs-cache-mode", "off", cached=False)
        directory = mountpoint / "run"
        save, load = self.functions(directory)
        for step in (1, 2):
            save(step)
        assert load() == b"2"
        assert [(info.step, info.state) for info in steps(bucket / "run", verify=True)] == [(2, "committed")]

    def test_lost_mount_is_neither_damage_nor_a_first_run(self, mounted):
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
