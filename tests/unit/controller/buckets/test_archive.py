"""`read_files`: archives that are small, and claim or unpack to far more than there is room for."""

from __future__ import annotations

import gzip
import io
import resource
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perdure.controller.buckets.archive import read_files
from perdure.controller.buckets.stores import StorageError

MIB = 2**20


def peak_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def many_zeros(path: Path) -> None:
    """300 MiB in 300 KB."""
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("zeros")
        member.size = 300 * MIB
        tar.addfile(member, _Zeros())


class _Zeros(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def huge_header(path: Path, kind: bytes = tarfile.XHDTYPE) -> None:
    """A header of 300 MiB, which `tarfile` would read into memory."""
    header = tarfile.TarInfo("name")
    header.type, header.size = kind, 300 * MIB
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header.tobuf())
        for _ in range(300):
            file.write(bytes(MIB))


def huge_long_name(path: Path) -> None:
    huge_header(path, tarfile.GNUTYPE_LONGNAME)


def many_copies(path: Path) -> None:
    """A file of 1 MiB and a thousand links to it."""
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("file")
        member.size = MIB
        tar.addfile(member, io.BytesIO(bytes(MIB)))
        for number in range(1000):
            link = tarfile.TarInfo(f"link-{number}")
            link.type, link.linkname = tarfile.LNKTYPE, "file"
            tar.addfile(link)


def truncated(path: Path) -> None:
    many_zeros(path)
    path.write_bytes(path.read_bytes()[:100_000])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (many_zeros, "amount to more than 0.03.* GiB: upload fewer files, or raise uploads.max_unpacked_gib"),
        (huge_header, "a file's header is longer than 1048576 bytes"),
        (huge_long_name, "a file's header is longer than 1048576 bytes"),
        (many_copies, "amount to more than"),
    ],
)
def test_read_files__rejects_a_bomb_in_little_memory(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    make(tmp_path / "upload")
    before = peak_rss_mib()
    with pytest.raises(StorageError, match=words):
        for _ in read_files(tmp_path / "upload", "bucket", max_bytes=32 * MIB):
            pass
    assert peak_rss_mib() - before < 16


def test_read_files__rejects_a_truncated_archive(tmp_path: Path) -> None:
    truncated(tmp_path / "upload")
    with pytest.raises(StorageError, match="is not an archive"):
        list(read_files(tmp_path / "upload", "bucket"))


def test_read_files__leaves_space_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many_zeros(tmp_path / "upload")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=400 * MIB))
    with pytest.raises(StorageError, match="would fill the controller's disk"):
        list(read_files(tmp_path / "upload", "bucket"))


def test_read_files__ends_its_process_when_its_reader_stops(tmp_path: Path) -> None:
    many_copies(tmp_path / "upload")
    files = read_files(tmp_path / "upload", "bucket")
    name, body = next(files)
    assert (name, body.read()) == ("file", bytes(MIB))
    files.close()  # type: ignore[attr-defined]  # it is a generator
    assert not Path(tempfile.gettempdir(), "file").exists()
