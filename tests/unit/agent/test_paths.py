"""A disk that another attempt has used before."""

from __future__ import annotations

from pathlib import Path

from perdure.agent.paths import NodePaths

OLD, NEW = "token-of-attempt-1", "token-of-attempt-2"


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


def test_begin_attempt__of_another_one_keeps_tools_and_what_the_home_had_at_first(tmp_path: Path) -> None:
    paths = used(tmp_path)
    for _ in range(2):  # an agent that dies meanwhile begins again
        paths.begin_attempt(NEW)
        kept = {str(path.relative_to(paths.root)) for path in paths.root.rglob("*") if path.is_file()}
        assert kept == {"agent.pyz", "attempt", "home.json", "tools/uv"}
        assert paths.run_dir.is_dir()


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
