"""Unpacking uploads: nothing is written outside, with Python's own filter and without."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from perdure.agent.link.client import ControllerClient
from perdure.agent.node_spec import NodeSpec
from perdure.agent.storage.fetch import Fetcher, unpack_file, unpack_folder
from perdure.agent.workload import shared_workdir
from perdure.agent.workload.environment import node_path
from support.helpers.file_locks import is_waited_for
from support.helpers.timing import wait_until


def test_fetch_files__without_a_workdir_waits_until_another_job_has_put_its_files_there(tmp_path: Path) -> None:
    record, workdir = tmp_path / "main.json", tmp_path / "work"
    environ = {"PERDURE_WORKDIR": str(workdir), "PERDURE_WORKDIR_RECORD": str(record)}
    client = cast("ControllerClient", None)  # nothing is downloaded
    fetcher = Fetcher(client, tmp_path, artifacts_dir=None, environ=environ, log=print)
    spec = cast("NodeSpec", SimpleNamespace(workdir=None, uploads=[]))
    thread = threading.Thread(target=fetcher.fetch_files, args=[spec])
    with shared_workdir.locked(record):
        thread.start()
        wait_until(lambda: not thread.is_alive() or is_waited_for(tmp_path / "main.json.lock"), "the job to wait", 20)
        assert not workdir.exists()
    thread.join()
    assert workdir.is_dir()


@pytest.fixture(params=["python's filter", "our filter"])
def filtered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "our filter":
        monkeypatch.delattr(tarfile, "data_filter")


def pack(path: Path, *members: tuple[str, bytes | str, int]) -> Path:
    """A tar.gz: (name, content or link target, type)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind.to_bytes(1, "big")
            member.mode = 0o6777
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.linkname = content
                tar.addfile(member)
    return path


FILE, HARD, SYM, FIFO = (kind[0] for kind in (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE))
CHAR, BLOCK = tarfile.CHRTYPE[0], tarfile.BLKTYPE[0]


@pytest.mark.usefixtures("filtered")
@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("../outside", b"x", FILE),
        ("a/../../outside", b"x", FILE),
        ("../outside", "/etc/passwd", SYM),
        ("a/../../outside", "/etc/passwd", SYM),
        ("link", "../outside", HARD),
        ("link", "/etc/passwd", HARD),
        ("device", "", CHAR),
        ("device", "", BLOCK),
        ("pipe", "", FIFO),
    ],
)
def test_unpack_folder__skips_members_that_leave_it(tmp_path: Path, name: str, content: bytes | str, kind: int) -> None:
    target = tmp_path / "target"
    lines: list[str] = []
    packed = pack(tmp_path / "p", ("before", b"1", FILE), (name, content, kind), ("after", b"2", FILE))
    unpack_folder(packed, target, log=lines.append)
    assert sorted(os.listdir(target)) == ["after", "before"]
    assert sorted(os.listdir(tmp_path)) == ["p", "target"]
    assert len(lines) == 1


@pytest.mark.usefixtures("filtered")
def test_unpack_folder__does_not_follow_an_earlier_link_out(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/door").symlink_to(tmp_path)
    packed = pack(tmp_path / "p", ("door/outside", b"x", FILE))
    unpack_folder(packed, tmp_path / "target", log=lambda _: None)
    assert not (tmp_path / "outside").exists()


@pytest.mark.usefixtures("filtered")
def test_unpack_folder__keeps_links_that_lead_out(tmp_path: Path) -> None:
    links = [("abs", "/data/set", SYM), ("a/up", "../../data", SYM), ("gone", "/nowhere", SYM)]
    packed = pack(tmp_path / "p", *links, ("a/b", b"1", FILE))
    for _ in range(2):  # a fetch may be repeated
        unpack_folder(packed, tmp_path / "t", log=pytest.fail)
        assert {name: os.readlink(tmp_path / "t" / name) for name, _, _ in links} == {
            name: content for name, content, _ in links
        }
        assert (tmp_path / "t/a/b").read_bytes() == b"1"


@pytest.mark.usefixtures("filtered")
def test_unpack_folder__writes_nothing_through_its_own_links(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    packed = pack(
        tmp_path / "p",
        ("door", str(tmp_path / "precious"), SYM),
        ("door/file", b"x", FILE),
        ("way", str(tmp_path / "precious"), SYM),
        ("way/link", "/nowhere", SYM),
    )
    lines: list[str] = []
    unpack_folder(packed, tmp_path / "t", log=lines.append)
    assert os.listdir(tmp_path / "precious") == []
    assert (tmp_path / "t/door/file").read_bytes() == b"x"
    assert len(lines) == 2, "the folder stays a folder, and the link through a link is left out"


@pytest.mark.usefixtures("filtered")
def test_unpack_folder__keeps_ordinary_content(tmp_path: Path) -> None:
    packed = pack(tmp_path / "p", ("a/b/c", b"deep", FILE), ("a/link", "b/c", SYM), ("hard", "a/b/c", HARD))
    unpack_folder(packed, tmp_path / "t", log=pytest.fail)
    assert (tmp_path / "t/a/link").read_bytes() == (tmp_path / "t/hard").read_bytes() == b"deep"
    assert (tmp_path / "t/a/b/c").stat().st_mode & 0o7022 == 0
    assert (tmp_path / "t/a/b/c").stat().st_mode & 0o100


def test_unpack_file__uses_the_targets_name(tmp_path: Path) -> None:
    packed = pack(tmp_path / "p", ("../evil", b"content", FILE))
    unpack_file(packed, tmp_path / "deep/er/.vimrc")
    assert (tmp_path / "deep/er/.vimrc").read_bytes() == b"content"
    assert sorted(os.listdir(tmp_path)) == ["deep", "p"]


def test_unpack_file__fails_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        unpack_file(pack(tmp_path / "p"), tmp_path / "x")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("~/.vimrc", "/h/.vimrc"), ("~", "/h"), ("/abs/x", "/abs/x"), ("rel/x", "/h/sky_workdir/rel/x")],
)
def test_node_path__of_the_tasks_paths(path: str, expected: str) -> None:
    assert node_path(path, {"HOME": "/h"}) == Path(expected)


def test_unpack_folder__puts_absolute_names_below_it(tmp_path: Path) -> None:
    packed = pack(tmp_path / "p", (f"{tmp_path}/outside", b"x", FILE))
    unpack_folder(packed, tmp_path / "t", log=lambda _: None)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("unpack", [lambda p, t: unpack_folder(p, t, log=lambda _: None), unpack_file])
def test_unpack__refuses_what_would_fill_the_disk(tmp_path: Path, unpack: Callable[[Path, Path], None]) -> None:
    """An archive whose member claims to be larger than any disk."""
    bomb = tarfile.TarInfo("zeros")
    bomb.size = 2**60
    with gzip.open(tmp_path / "p", "wb") as packed:
        packed.write(bomb.tobuf(tarfile.GNU_FORMAT) + bytes(10_000))
    with pytest.raises(OSError, match="bytes, and this node has"):
        unpack(tmp_path / "p", tmp_path / "t")
    assert not (tmp_path / "t" / "zeros").exists()


def test_unpack_folder__refuses_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.agent.storage.fetch.MAX_MEMBERS", 3)
    packed = pack(tmp_path / "p", *((str(n), b"", FILE) for n in range(4)))
    with pytest.raises(OSError, match="more than 3 files"):
        unpack_folder(packed, tmp_path / "t", log=lambda _: None)
