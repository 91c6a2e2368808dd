"""Packing of local files: contents, digests, and uploads of missing archives only."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from perdure.sdk.connection.client import Client
from perdure.sdk.files import uploads
from perdure.sdk.files.uploads import Archive, UploadError
from unit.sdk.contract_server import Controller


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def packed(source: Path, tmp_path: Path, *, is_workdir: bool = True) -> tuple[Archive, dict[str, tarfile.TarInfo]]:
    target = tmp_path / f"{len(list(tmp_path.glob('*.tar.gz')))}.tar.gz"
    archive = uploads.pack(source, target, is_workdir=is_workdir)
    with tarfile.open(archive.path) as tar:
        return archive, {member.name: member for member in tar.getmembers()}


def test_archive__same_tree_has_same_digest(tmp_path: Path) -> None:
    files = {"b/two.py": "2", "a.py": "1", "c/d/e.txt": "3" * 5000}
    one, _ = packed(tree(tmp_path / "one", files), tmp_path)
    two, _ = packed(tree(tmp_path / "two", dict(reversed(files.items()))), tmp_path)
    for folder in (tmp_path / "one", tmp_path / "two"):  # the time of making a folder is not the time of its content
        for path in [*folder.rglob("*")]:
            os.utime(path, (1_700_000_000, 1_700_000_000))
    one, _ = packed(tmp_path / "one", tmp_path)
    two, _ = packed(tmp_path / "two", tmp_path)
    assert one.sha256 == two.sha256
    assert one.files == 3
    assert one.path.read_bytes()[4:8] == bytes(4), "gzip's own time stamp"
    (tmp_path / "two" / "a.py").write_text("changed")
    assert packed(tmp_path / "two", tmp_path)[0].sha256 != one.sha256


def test_archive__keeps_modes_and_times_without_owners(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"run.sh": "#!/bin/sh\n"})
    (root / "run.sh").chmod(0o750)
    archive, members = packed(root, tmp_path)
    member = members["run.sh"]
    assert (member.mode, member.mtime, member.uid, member.uname) == (0o750, 1_700_000_000, 0, "")
    with tarfile.open(archive.path) as tar:
        assert tar.extractfile("run.sh").read() == b"#!/bin/sh\n"


def test_archive__keeps_links_and_skips_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "w", {"data/x": "1"})
    (root / "empty").mkdir()
    (root / "to-folder").symlink_to("data")
    (root / "dangling").symlink_to("/nowhere")
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        _, members = packed(root, tmp_path)
    assert set(members) == {"data", "data/x", "empty", "to-folder", "dangling"}
    assert members["to-folder"].issym()
    assert members["to-folder"].linkname == "data"
    assert members["dangling"].linkname == "/nowhere"
    assert members["empty"].isdir()


def test_archive__single_file_has_its_own_name(tmp_path: Path) -> None:
    tree(tmp_path, {"real.cfg": "k=v"})
    (tmp_path / "link.cfg").symlink_to("real.cfg")
    archive, members = packed(tmp_path / "link.cfg", tmp_path)
    assert archive.is_file
    assert list(members) == ["link.cfg"]
    assert members["link.cfg"].isreg()


def test_archive__keeps_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_text("x")
    git(root, "init", "-q")
    archive, _ = packed(root, tmp_path)
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xzf", archive.path, "-C", tmp_path / "out"], check=True)
    assert os.listdir(os.fsencode(tmp_path / "out")) == [b"caf\xe9"]


def test_pack__reports_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(UploadError, match="No such file"):
        uploads.pack(tmp_path / "nowhere", tmp_path / "t.tar.gz", is_workdir=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to run as somebody who may not read")
def test_pack__reports_a_file_without_permission(tmp_path: Path) -> None:
    """Runs as another user, since root may read everything."""
    root = tree(tmp_path / "w", {"ok": "", "secret": "s"})
    (root / "secret").chmod(0)
    script = (
        "import os, pathlib; from perdure.sdk.files import uploads\n"
        "os.setuid(65534)\n"
        "try: uploads.pack(pathlib.Path(), pathlib.Path('/dev/null'), is_workdir=False)\n"
        "except uploads.UploadError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert "cannot read secret: Permission denied" in done.stdout, done
    assert "nothing was sent" in done.stdout


def test_pack__memory_is_bounded(tmp_path: Path) -> None:
    with open(tmp_path / "big", "wb") as big:
        for _ in range(24):
            big.write(os.urandom(1 << 20))
    tracemalloc.start()
    archive = uploads.pack(tmp_path / "big", tmp_path / "t.tar.gz", is_workdir=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert archive.size_bytes > 20 << 20
    assert peak < 4 << 20


def test_pack_tasks__packs_every_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {"code/train.py": "", "cfg": "k", "data/x": "1"})
    monkeypatch.chdir(tmp_path)
    task = {
        "run": "true",
        "workdir": "code",
        "file_mounts": {
            "/cfg": "./cfg",
            "/data": "data",
            "/bucket": "s3://b/p",
            "/again": "./cfg",
            "/storage": {"name": "b", "source": "data", "mode": "COPY"},
            "/ready": {"source": "s3://b", "mode": "MOUNT"},
        },
    }
    with uploads.pack_tasks([task, {"run": "x", "workdir": {"url": "https://example.org/r.git"}}]) as packed_tasks:
        first, second = packed_tasks.tasks
        mounts = first["file_mounts"]
        assert set(first["workdir"]) == {"upload"}
        assert mounts["/cfg"]["is_file"] is True
        assert mounts["/data"] == {"upload": mounts["/data"]["upload"], "is_file": False}
        assert mounts["/again"] == mounts["/cfg"]
        assert mounts["/bucket"] == "s3://b/p"
        assert mounts["/storage"] == {"name": "b", "mode": "COPY", "source": mounts["/data"]}
        assert mounts["/ready"] == {"source": "s3://b", "mode": "MOUNT"}
        assert second["workdir"] == {"url": "https://example.org/r.git"}
        assert len(packed_tasks.archives) == 3
        paths = [archive.path for archive in packed_tasks.archives.values()]
    assert not any(path.exists() for path in paths)
    assert task["workdir"] == "code", "the caller's configuration is not touched"


def test_send__uploads_only_missing_archives(tmp_path: Path, controller: Controller, client: Client) -> None:
    tree(tmp_path, {"code/train.py": "print()", "data/x": "1" * 300_000})
    messages: list[str] = []
    with uploads.pack_tasks(
        [{"workdir": str(tmp_path / "code"), "file_mounts": {"/d": str(tmp_path / "data")}}]
    ) as job:
        uploads.send(client, job.archives, on_message=messages.append)
        assert set(controller.uploads) == set(job.archives)
        uploads.send(client, job.archives, on_message=messages.append)
        digest = job.tasks[0]["workdir"]["upload"]
    assert len(controller.called("PUT .*")) == 2
    assert len(messages) == 2
    assert "(1 file, " in messages[0]
    with tarfile.open(fileobj=io.BytesIO(controller.uploads[digest])) as tar:
        assert tar.getnames() == ["train.py"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (2.5e9, "2.5 GB"), (3e8, "300 MB")]
)
def test_format_size__picks_the_unit(size: float, text: str) -> None:
    assert uploads.format_size(size) == text


def test_packed_tasks__warn_of_big_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "WARN_ABOVE_BYTES", 100)
    with uploads.pack_tasks([{"workdir": str(tree(tmp_path / "w", {"a": "", "b": ""}))}]) as job:
        assert len(job.warnings) == 1
        assert "in 2 files" in job.warnings[0]
        assert ".skyignore" in job.warnings[0]
