"""Our tar archives: the bytes of `tarfile`, and holes that stay holes."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from perdure.sdk.files.tar_writer import TarWriter

KIB = 1024


def written(root, names):
    out = io.BytesIO()
    writer = TarWriter(out)
    files = sum(writer.add(f"{root}/{name}", name) for name in names)
    writer.close()
    return files, out.getvalue()


def expected(root, names):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
        for name in names:
            status = os.lstat(f"{root}/{name}")
            member = tarfile.TarInfo(name)
            member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
            if stat.S_ISDIR(status.st_mode):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif stat.S_ISLNK(status.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(f"{root}/{name}")
                archive.addfile(member)
            else:
                member.size = status.st_size
                with open(f"{root}/{name}", "rb") as content:
                    archive.addfile(member, content)
    return out.getvalue()


def test_archive__has_the_bytes_of_tarfile(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0o750)
    (tmp_path / ("d" * 99)).mkdir()
    (tmp_path / ("e" * 100)).mkdir()
    contents = {"empty": 0, "one": 1, "block": 512, "more": 513, "big": 700 * KIB, "n" * 100: 3, "n" * 101: 3, "ä": 5}
    for name, size in contents.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    os.utime(tmp_path / "one", (0, 0))
    os.utime(tmp_path / "block", (-5, -5))
    (tmp_path / "more").chmod(0o4755)
    (tmp_path / "link").symlink_to("one")
    (tmp_path / "long link").symlink_to("x" * 150)
    (tmp_path / os.fsdecode(b"raw \xff")).write_text("raw")
    names = sorted(os.listdir(tmp_path))
    files, archive = written(tmp_path, names)
    assert files == len(names) - 3
    assert archive == expected(tmp_path, names)


def sparse_file(path: Path) -> bytes:
    """A file of 20 MB with little in it; returns its content."""
    with open(path, "wb") as file:
        for offset in (0, 5_000_000, 15_000_000):
            file.seek(offset)
            file.write(os.urandom(10_000))
        file.truncate(20_000_000)
    path.chmod(0o640)
    if path.stat().st_blocks * 512 > 5_000_000:
        pytest.skip("this file system has no sparse files")
    return path.read_bytes()


@pytest.mark.parametrize("name", ["sparse", "folder/spärse " + "x" * 120, os.fsdecode(b"\xff")])
def test_sparse_file__is_packed_without_its_holes(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    content = sparse_file(tmp_path / name)
    (tmp_path / "after").write_text("after")
    _, archive = written(tmp_path, [name, "after"])
    assert len(archive) < 200_000
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == [name, "after"]
        tar.extractall(tmp_path / "out", filter="data")
    unpacked = tmp_path / "out" / name
    assert unpacked.read_bytes() == content
    assert unpacked.stat().st_mode & 0o777 == 0o640
    assert unpacked.stat().st_blocks * 512 < 5_000_000
    assert (tmp_path / "out/after").read_text() == "after"
    (tmp_path / "a.tar").write_bytes(archive)
    (tmp_path / "gnu").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "gnu"], check=True)
    assert (tmp_path / "gnu" / name).read_bytes() == content


def test_sparse_file__of_holes_only(tmp_path: Path) -> None:
    with open(tmp_path / "empty", "wb") as file:
        file.truncate(8_000_000)
    _, archive = written(tmp_path, ["empty"])
    assert len(archive) < 20_000
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.extractfile("empty").read() == bytes(8_000_000)


def test_writer__reports_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    sizes = []
    TarWriter(io.BytesIO(), sizes.append).add(str(tmp_path / "a"), "a")
    assert sum(sizes) == 3_000_000
    assert len(sizes) > 3
