"""Lists the files of a directory that are uploaded with a task.

If the directory has a `.skyignore` (patterns as in `.gitignore`), it decides. Otherwise, a working directory inside a
git tree uploads the files of `git ls-files` (tracked, and untracked but not ignored) and empty directories. Any other
working directory uploads everything but `.git`, as in SkyPilot; `sent_though_ignored` names what its `.gitignore` files
exclude, for a warning. A file mount uploads everything, since data is often ignored by git but needed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

IGNORE_FILE = ".skyignore"
GIT_IGNORE_FILE = ".gitignore"
_SECRET_NAMES = re.compile(r"\.env(\..*)?|\.netrc|.*(credential|secret|token).*|id_[a-z0-9]+|.*\.(pem|key)", re.I)


def list_directory(root: Path, *, is_workdir: bool) -> list[str]:
    """The relative paths below `root`, sorted, with the directories that are empty.

    Raises OSError for a directory that cannot be read.
    """
    ignore_file = root / IGNORE_FILE
    if ignore_file.is_file():
        return _walk(root, ignore_rule(ignore_file.read_text().splitlines(), without_git=is_workdir))
    if not is_workdir:
        return _walk(root, ignore_rule([], without_git=False))
    listed = _list_by_git(root)
    return listed if listed is not None else _walk(root, ignore_rule([], without_git=True))


def held_back(root: Path, sent: Collection[str]) -> list[str]:
    """The files directly in the working directory `root` that an ignore file keeps from being sent, sorted.

    Folders and compiled files are left out: they are ignored on purpose nearly always.
    """
    names = {name.partition("/")[0] for name in sent}
    with os.scandir(root) as entries:
        files = [entry.name for entry in entries if entry.name not in names and not entry.is_dir(follow_symlinks=False)]
    return sorted(name for name in files if name != ".git" and not name.endswith((".pyc", ".pyo")))


def sent_though_ignored(root: Path, sent: Sequence[str]) -> list[str]:
    """The files among `sent` that a `.gitignore` excludes, although it does not count in the working directory `root`:
    that is in no git tree. Those whose names look like secrets come first, then by path."""
    ignore_files = [name for name in sent if name.rpartition("/")[2] == GIT_IGNORE_FILE]
    if not ignore_files or (root / IGNORE_FILE).is_file() or _is_listed_by_git(root):
        return []
    rules = {}
    for name in ignore_files:
        if (root / name).is_file():
            lines = (root / name).read_text(errors="replace").splitlines()
            rules[name.removesuffix(GIT_IGNORE_FILE)] = ignore_rule(lines, without_git=False)
    ignored = [name for name in sent if _is_ignored_by_any(rules, name) and not (root / name).is_dir()]
    return sorted(ignored, key=lambda name: (not _SECRET_NAMES.fullmatch(name.rpartition("/")[2]), name))


def _is_ignored_by_any(rules: Mapping[str, Callable[[str, bool], bool]], name: str) -> bool:
    """Whether a file or a folder above it is ignored. `rules`: by the folder of the ignore file, `""` or `sub/`."""
    parents = [name[:at] for at, char in enumerate(name) if char == "/"]
    return any(
        is_ignored(path.removeprefix(folder), path != name)
        for folder, is_ignored in rules.items()
        for path in (*parents, name)
        if path.startswith(folder) and path != folder
    )


def ignore_rule(patterns: list[str], *, without_git: bool) -> Callable[[str, bool], bool]:
    """A function of (relative path, is a directory): whether the patterns exclude it. The last match decides."""
    rules = [_rule(line.rstrip()) for line in patterns if line.strip() and not line.startswith("#")]

    def is_ignored(path: str, is_directory: bool) -> bool:
        if without_git and path == ".git":
            return True
        verdict = False
        for expression, keeps, only_directories in rules:
            if (is_directory or not only_directories) and expression.fullmatch(path):
                verdict = not keeps
        return verdict

    return is_ignored


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool]:
    """(expression, whether it includes rather than excludes, whether only directories) of a `.gitignore` line."""
    keeps = line.startswith("!")
    pattern = line.removeprefix("!").removeprefix("\\")
    only_directories = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    is_anchored = "/" in pattern
    expression = "" if is_anchored else "(?:.*/)?"
    pieces = re.split(r"(\*\*/|/\*\*$|\*|\?|\[!?[^]]+\])", pattern.removeprefix("/"))
    return re.compile(expression + "".join(map(_translate, pieces))), keeps, only_directories


def _translate(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]"):
        return piece.replace("[!", "[^", 1)
    return {"**/": "(?:.*/)?", "/**": "/.*", "*": "[^/]*", "?": "[^/]"}.get(piece, re.escape(piece))


def _walk(root: Path, is_ignored: Callable[[str, bool], bool]) -> list[str]:
    def refuse(error: OSError) -> None:
        raise error

    paths: list[str] = []
    for folder, directories, files in os.walk(root, onerror=refuse):
        inside = os.path.relpath(folder, root)
        prefix = "" if inside == "." else inside + "/"
        directories[:] = [name for name in directories if not is_ignored(prefix + name, True)]
        paths += [prefix + name for name in directories]
        paths += [prefix + name for name in files if not is_ignored(prefix + name, False)]
    return sorted(paths)


def _list_by_git(root: Path) -> list[str] | None:
    """The files of `root` by git; None outside a git tree, in a directory that its tree ignores, or without git."""
    if not _is_listed_by_git(root):
        return None
    listing = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listing is None:
        return None
    paths: set[str] = set()
    for name in map(os.fsdecode, listing.split(b"\0")):
        path = root / name.rstrip("/")
        if not name or not os.path.lexists(path):  # tracked, but deleted here
            continue
        if path.is_dir() and not path.is_symlink():  # a submodule, or a repository inside this one
            paths.update(f"{name.rstrip('/')}/{inner}" for inner in list_directory(path, is_workdir=True))
        else:
            paths.add(name)
    return sorted(paths | _empty_directories(root))


def _is_listed_by_git(root: Path) -> bool:
    return (
        _git(root, "rev-parse", "--is-inside-work-tree") == b"true\n" and _git(root, "check-ignore", "-q", ".") is None
    )


def _empty_directories(root: Path) -> set[str]:
    """The empty directories of a git tree that it does not ignore: git itself lists files only."""
    ignored = _git(root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory") or b""
    skipped = {os.fsdecode(name).rstrip("/") for name in ignored.split(b"\0") if name.endswith(b"/")}
    empty: set[str] = set()
    for folder, directories, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        if not directories and not files and inside != ".":
            empty.add(inside)
        prefix = "" if inside == "." else inside + "/"
        directories[:] = [
            name
            for name in directories
            if name != ".git" and prefix + name not in skipped and not os.path.lexists(f"{folder}/{name}/.git")
        ]
    return empty


def _git(root: Path, *arguments: str) -> bytes | None:
    """stdout of a git command run in `root`; None if it fails or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
