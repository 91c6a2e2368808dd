"""Which files of a directory are sent along with a task.

`.skyignore` at the directory's top decides where there is one (patterns as in `.gitignore`). Else a working directory
inside a git tree sends what git would (`git ls-files`: tracked, and untracked but not ignored), and any other sends all
but `.git`. A file mount sends everything: data is often ignored by git, and still wanted.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

IGNORE_FILE = ".skyignore"


def of_directory(root: Path, *, is_workdir: bool) -> list[str]:
    """Paths below `root`, relative, sorted. Directories are named where they are walked, so that empty ones are kept.

    Raises `OSError` for a directory that can not be read.
    """
    ignore_file = root / IGNORE_FILE
    if ignore_file.is_file():
        return _walked(root, is_left_out(ignore_file.read_text().splitlines(), without_git=is_workdir))
    if not is_workdir:
        return _walked(root, is_left_out([], without_git=False))
    listed = _git_listed(root)
    return listed if listed is not None else _walked(root, is_left_out([], without_git=True))


def is_left_out(patterns: list[str], *, without_git: bool) -> Callable[[str, bool], bool]:
    """A test of (relative path, is a directory): do the patterns leave it out? The last that matches decides."""
    rules = [_rule(line.rstrip()) for line in patterns if line.strip() and not line.startswith("#")]

    def left_out(path: str, is_directory: bool) -> bool:
        if without_git and path == ".git":
            return True
        verdict = False
        for expression, keeps, only_directories in rules:
            if (is_directory or not only_directories) and expression.fullmatch(path):
                verdict = not keeps
        return verdict

    return left_out


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool]:
    """(what it matches, whether it keeps rather than leaves out, whether only directories) of a `.gitignore` line."""
    keeps = line.startswith("!")
    pattern = line.removeprefix("!").removeprefix("\\")
    only_directories = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    is_anchored = "/" in pattern
    expression = "" if is_anchored else "(?:.*/)?"
    pieces = re.split(r"(\*\*/|/\*\*$|\*|\?|\[!?[^]]+\])", pattern.removeprefix("/"))
    return re.compile(expression + "".join(map(_translated, pieces))), keeps, only_directories


def _translated(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]"):
        return piece.replace("[!", "[^", 1)
    return {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}.get(piece, re.escape(piece))


def _walked(root: Path, left_out: Callable[[str, bool], bool]) -> list[str]:
    def refuse(error: OSError) -> None:
        raise error

    found: list[str] = []
    for folder, directories, files in os.walk(root, onerror=refuse):
        inside = os.path.relpath(folder, root)
        prefix = "" if inside == "." else inside + "/"
        directories[:] = [name for name in directories if not left_out(prefix + name, True)]
        found += [prefix + name for name in directories]
        found += [prefix + name for name in files if not left_out(prefix + name, False)]
    return sorted(found)


def _git_listed(root: Path) -> list[str] | None:
    """What git would take of `root`; None outside a git tree, in a directory that its tree ignores, or without git."""
    if (
        _git(root, "rev-parse", "--is-inside-work-tree") != b"true\n"
        or _git(root, "check-ignore", "-q", ".") is not None
    ):
        return None
    listing = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listing is None:
        return None
    found: set[str] = set()
    for name in map(os.fsdecode, listing.split(b"\0")):
        path = root / name.rstrip("/")
        if not name or not os.path.lexists(path):  # tracked, but deleted here
            continue
        if path.is_dir() and not path.is_symlink():  # a submodule, or a repository inside this one
            found.update(f"{name.rstrip('/')}/{inner}" for inner in of_directory(path, is_workdir=True))
        else:
            found.add(name)
    return sorted(found)


def _git(root: Path, *arguments: str) -> bytes | None:
    """stdout of a git command run in `root`; None if it fails or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
