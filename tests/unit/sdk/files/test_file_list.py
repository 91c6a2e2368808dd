"""The files of a directory that are uploaded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from perdure.sdk.files import file_list, uploads


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


def names(source: Path, *, is_workdir: bool = True) -> list[str]:
    return file_list.list_directory(source, is_workdir=is_workdir)


def test_file_list__git_tree(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "repo",
        {
            ".gitignore": "*.ckpt\n/out/\n",
            "train.py": "",
            "sub/new.py": "",
            "big.ckpt": "",
            "out/log": "",
            "gone.py": "",
            "sub/kept.ckpt": "",
        },
    )
    git(root, "init", "-q")
    git(root, "add", "train.py", "gone.py", ".gitignore")
    git(root, "add", "-f", "sub/kept.ckpt")
    git(root, "commit", "-qm", "first")
    (root / "gone.py").unlink()
    assert names(root) == [".gitignore", "sub/kept.ckpt", "sub/new.py", "train.py"]
    assert names(root / "sub") == ["kept.ckpt", "new.py"]
    assert names(root / "out") == ["log"], "a working directory that its tree ignores is sent as it is"
    everything = names(root, is_workdir=False)
    assert "big.ckpt" in everything, "a file mount is data, even if git ignores it"
    assert ".git/HEAD" in everything


def test_file_list__git_tree_with_empty_directories(tmp_path: Path) -> None:
    root = tree(tmp_path / "repo", {".gitignore": "/out/\n*.pyc\n", "a.py": "", "out/log": "", "cache/a.pyc": ""})
    for folder in ("data/raw", "out/later", "inner"):
        (root / folder).mkdir(parents=True)
    git(root, "init", "-q")
    git(root / "inner", "init", "-q")
    assert names(root) == [".gitignore", "a.py", "data/raw"]
    git(root, "add", "a.py", ".gitignore")
    git(root, "commit", "-qm", "first")
    (root / "pkg/empty").mkdir(parents=True)
    assert names(root) == [".gitignore", "a.py", "data/raw", "pkg/empty"]
    assert names(root / "data") == ["raw"]


def test_file_list__nested_repository(tmp_path: Path) -> None:
    root = tree(tmp_path / "repo", {"a.py": "", "inner/.gitignore": "x\n", "inner/b.py": "", "inner/x": ""})
    git(root, "init", "-q")
    git(root / "inner", "init", "-q")
    git(root / "inner", "add", "b.py")
    git(root / "inner", "commit", "-qm", "inner")
    assert names(root) == ["a.py", "inner/.gitignore", "inner/b.py"]
    git(root, "add", "inner")
    assert names(root) == ["a.py", "inner/.gitignore", "inner/b.py"], "also once it is a submodule"


def test_file_list__without_git(tmp_path: Path) -> None:
    root = tree(tmp_path / "w", {"a": "", ".env": "", ".git/HEAD": "not really", "b/c": ""})
    assert names(root) == [".env", "a", "b", "b/c"]


def test_file_list__skyignore(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "w",
        {
            ".skyignore": "# data\n*.bin\n/only-top\nbuild/\ndeep/**/x\n!keep.bin\n[ab].txt\n\n",
            "m.bin": "",
            "keep.bin": "",
            "only-top": "",
            "sub/only-top": "",
            "build/o": "",
            "sub/build": "a file",
            "deep/1/2/x": "",
            "deep/x": "",
            "a.txt": "",
            "c.txt": "",
            ".git/HEAD": "",
        },
    )
    kept = [name for name in names(root) if not (root / name).is_dir()]
    assert kept == [".skyignore", "c.txt", "keep.bin", "sub/build", "sub/only-top"]


def test_held_back__names_ignored_files_but_no_folders(tmp_path: Path) -> None:
    (tmp_path / ".skyignore").write_text(".env\n*.pyc\ncache/\n")
    for name in (".env", "train.py", "train.pyc"):
        (tmp_path / name).write_text("")
    (tmp_path / "cache").mkdir()
    assert file_list.held_back(tmp_path, file_list.list_directory(tmp_path, is_workdir=True)) == [".env"]


def test_packed_tasks__warn_of_files_that_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / ".skyignore").write_text(".env\n")
    (tmp_path / ".env").write_text("TOKEN=1")
    with uploads.pack_tasks([{"workdir": str(tmp_path)}]) as packed:
        (warning,) = packed.warnings
    assert warning.endswith(
        "since .skyignore excludes it: .env; pass it with --env-file, or put `!.env` into .skyignore"
    )


def test_packed_tasks__warn_of_ignored_files_that_are_sent_without_git(tmp_path: Path) -> None:
    root = tree(
        tmp_path / "w",
        {
            ".gitignore": ".env\n/data/\n*.log\n!keep.log\n",
            ".env": "TOKEN=1",
            "a.log": "",
            "keep.log": "",
            "data/1/x": "",
            "sub/.gitignore": "token.txt\n",
            "sub/token.txt": "",
            "train.py": "",
            "token.txt": "",
        },
    )
    with uploads.pack_tasks([{"workdir": str(root)}]) as packed:
        (warning,) = packed.warnings
    assert "although a .gitignore excludes it: .env, sub/token.txt, a.log, data/1/x; " in warning
    assert ".skyignore" in warning
    (root / ".skyignore").write_text("nothing\n")
    assert file_list.sent_though_ignored(root, names(root)) == [], "it decides"
    (root / ".skyignore").unlink()
    git(root, "init", "-q")
    assert file_list.sent_though_ignored(root, names(root)) == []
    assert ".env" not in names(root)
