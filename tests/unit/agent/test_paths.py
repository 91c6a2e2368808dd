"""A disk that another attempt has used before."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from perdure.agent.paths import NodePaths

OLD, NEW = "token-of-attempt-1", "token-of-attempt-2"
OLD_DIGEST = hashlib.sha256(OLD.encode()).hexdigest()


def used(root: Path) -> NodePaths:
    """The state folder of an attempt that has ended."""
    paths = NodePaths(root / "state")
    paths.create()
    paths.begin_attempt(OLD)
    for name in (
        "spec.json",
        "state.json",
        "token.json",
        "log",
        "home.json",
        "agent.pyz",
        "tools/uv",
        "files",
        "mounts/k1/cache/vfs/r/b/not-uploaded",
        "stages/run/out",
    ):
        (paths.root / name).parent.mkdir(parents=True, exist_ok=True)
        (paths.root / name).write_text(name)
    return paths


def test_begin_attempt__of_the_same_attempt_changes_nothing(tmp_path: Path) -> None:
    paths = used(tmp_path)
    before = {path: path.read_bytes() for path in paths.root.rglob("*") if path.is_file()}
    paths.begin_attempt(OLD)
    assert {path: path.read_bytes() for path in paths.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("left", ["", OLD_DIGEST[:20], "\0" * 64])
def test_begin_attempt__after_a_power_cut_forgets_nothing(tmp_path: Path, left: str) -> None:
    paths = used(tmp_path)
    (paths.root / "attempt").write_text(left)
    paths.begin_attempt(OLD)
    assert (paths.spec.exists(), paths.state.exists(), paths.token.exists()) == (True, True, True)
    assert (paths.root / "attempt").read_text() == OLD_DIGEST


def test_begin_attempt__writes_the_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is truncated and written at each start of the agent is empty after a power cut."""
    paths = used(tmp_path)
    before = (paths.root / "attempt").stat()
    paths.begin_attempt(OLD)
    after = (paths.root / "attempt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    monkeypatch.setattr("os.fsync", lambda _descriptor: (_ for _ in ()).throw(OSError("the power is cut")))
    with pytest.raises(OSError, match="power"):
        paths.begin_attempt(NEW)
    assert (paths.root / "attempt").read_text() == OLD_DIGEST


def test_begin_attempt__of_another_one_keeps_what_belongs_to_the_machine(tmp_path: Path) -> None:
    paths = used(tmp_path)
    for _ in range(2):  # an agent that dies meanwhile begins again
        paths.begin_attempt(NEW)
        kept = {str(path.relative_to(paths.root)) for path in paths.root.rglob("*") if path.is_file()}
        of_user = {"files", "mounts/k1/cache/vfs/r/b/not-uploaded"}
        assert kept == {"agent.pyz", "attempt", "home.json", "tools/uv"} | of_user
        assert paths.run_dir.is_dir()


@pytest.mark.parametrize(
    ("state", "in_place"),
    [('{"prepared": true}', True), ('{"prepared": false}', False), ("{}", False), ("[1]", False), ("damaged", False)],
)
def test_begin_attempt__knows_the_files_of_an_older_agent(tmp_path: Path, state: str, in_place: bool) -> None:
    paths = used(tmp_path)
    paths.files_in_place.unlink()
    paths.state.write_text(state)
    for _ in range(2):
        paths.begin_attempt(NEW)
        assert paths.files_in_place.exists() is in_place


def test_begin_attempt__stores_no_token(tmp_path: Path) -> None:
    paths = used(tmp_path)
    assert not any(OLD.encode() in path.read_bytes() for path in paths.root.rglob("*") if path.is_file())


def test_begin_attempt__follows_no_links(tmp_path: Path) -> None:
    paths = used(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept").touch()
    (paths.root / "link").symlink_to(tmp_path / "data")
    paths.begin_attempt(NEW)
    assert (tmp_path / "data" / "kept").exists()
    assert not (paths.root / "link").is_symlink()
