"""rclone's cache on the disk: names of files, repaired records, and contents that have grown."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pytest

from perdure.agent.storage.vfs_cache import UploadState, VfsCache
from perdure.checkpoint.durability.cache_record import parse_record
from perdure.checkpoint.durability.file_version import FileVersion

NAME = "run/train.log"


def write(directory: Path, folder: str, content: bytes, *, dirty: bool = False, second: int = 0) -> Path:
    """rclone's copy of `NAME` and its record; returns the copy."""
    copy, record = (directory / kind / folder / NAME for kind in ("vfs", "vfsMeta"))
    for path in (copy, record):
        path.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content)
    moment = f"2026-11-23T23:11:{second:02}Z"
    record.write_text(json.dumps({"Dirty": dirty, "Fingerprint": "1", "Size": len(content), "ModTime": moment}))
    return copy


@pytest.mark.parametrize(("target", "folder"), [("", "crypt"), ("/", "crypt"), ("bucket/", "s3/bucket")])
def test_cache__finds_records_of_a_remotes_root_and_of_a_folder(tmp_path: Path, target: str, folder: str) -> None:
    write(tmp_path, folder, b"weights", dirty=True)
    cache = VfsCache(tmp_path, target, remote=folder.partition("/")[0])
    assert cache.upload_state(NAME) is UploadState.PENDING
    assert [file.name for file in cache.dirty_files()] == [NAME]
    write(tmp_path, folder, b"weights")
    assert cache.upload_state(NAME) is UploadState.UPLOADED
    assert cache.upload_state("run/other") is UploadState.UNRECORDED


def test_repair_records__keeps_the_time_to_the_nanosecond(tmp_path: Path) -> None:
    copy = write(tmp_path, "s3/bucket", b"weights")
    os.utime(copy, ns=(0, 1_795_475_476_921_545_717))
    record = tmp_path / "vfsMeta" / "s3" / "bucket" / NAME
    record.write_text("")
    assert VfsCache(tmp_path, "bucket").repair_records() == [NAME]
    assert parse_record(record.read_bytes()).mtime_ns == 1_795_475_476_921_545_717


class TestGrownFile:
    """A log that is part of a checkpoint, and is written again before the checkpoint is durable."""

    version = FileVersion(6, 0, 0, zlib.crc32(b"step 1"))

    def state(self, cache: VfsCache, version: FileVersion) -> UploadState:
        return cache.upload_state(NAME, version)

    def test_upload_state__counts_what_has_grown(self, tmp_path: Path) -> None:
        cache = VfsCache(tmp_path, "bucket")
        write(tmp_path, "s3/bucket", b"step 1, step 2", dirty=True)
        assert self.state(cache, self.version) is UploadState.PENDING
        write(tmp_path, "s3/bucket", b"step 1, step 2")
        assert self.state(cache, self.version) is UploadState.UPLOADED
        assert self.state(cache, self.version._replace(crc32=-1)) is UploadState.UNRECORDED

    def test_upload_state__takes_no_other_content_for_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = VfsCache(tmp_path, "bucket")
        for content in (b"step 2", b"step 2, step 3", b"step"):
            write(tmp_path, "s3/bucket", content)
            assert self.state(cache, self.version) is UploadState.UNRECORDED
        write(tmp_path, "s3/bucket", b"step 2", second=7)
        assert self.state(cache, self.version) is UploadState.UNRECORDED
        monkeypatch.setattr(FileVersion, "begins", lambda *_: pytest.fail("it was read already"))
        assert self.state(cache, self.version) is UploadState.UNRECORDED

    def test_upload_state__notices_a_write_while_it_reads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = VfsCache(tmp_path, "bucket")
        write(tmp_path, "s3/bucket", b"step 1")

        def begins(_version: FileVersion, _path: str) -> bool:
            write(tmp_path, "s3/bucket", b"step 2", dirty=True)
            return True

        monkeypatch.setattr(FileVersion, "begins", begins)
        assert self.state(cache, self.version) is UploadState.PENDING
