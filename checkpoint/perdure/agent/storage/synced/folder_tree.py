"""What a folder holds, read so that nothing looks removed that is only hidden: by an error, by a link, by a rename."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from perdure.agent.storage.snapshot import Stamp

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


@dataclass
class FolderTree:
    """One walk. It is no snapshot: what is renamed meanwhile may be missing. Names are relative to the folder."""

    files: dict[str, Stamp] = field(default_factory=dict)  # regular files, and links that lead to one
    links: set[str] = field(default_factory=set)  # those of `files` that are links
    problems: dict[str, str] = field(default_factory=dict)  # file or directory whose content is unknown → why
    ignored: dict[str, str] = field(default_factory=dict)  # links without content of their own → why

    def hides(self, name: str) -> bool:
        """Whether the file may be there, although this walk has not found it."""
        return any(part in self.problems for part in _with_parents(name))


def read_tree(folder: str, *, without: str = "") -> FolderTree:
    """Walk through a folder. `without`: a name at its top that is left out.

    Raises OSError for the folder itself. What cannot be read below it is one of the `problems`.
    """
    tree, waiting = FolderTree(), [""]
    while waiting:
        inner = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, inner)) as listing:
                entries = list(listing)
        except OSError as error:
            if not inner:
                raise
            if error.errno not in _GONE:
                tree.problems[inner] = f"the directory cannot be read: {error.strerror}"
            continue
        for entry in entries:
            name = os.path.join(inner, entry.name)
            if name == without:
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                else:
                    _add(tree, folder, name)
            except OSError as error:
                if error.errno not in _GONE:
                    tree.problems[name] = f"it cannot be read: {error.strerror}"
    return tree


def _add(tree: FolderTree, folder: str, name: str) -> None:
    path = os.path.join(folder, name)
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            tree.ignored[name] = "it is a link that leads nowhere"
            return
        if stat.S_ISDIR(status.st_mode):
            if _is_inside(path, folder):
                tree.ignored[name] = "it is a link to a directory, which a bucket cannot have"
            else:
                tree.problems[name] = "it is a link to a directory elsewhere: copy what it leads to"
            return
        tree.links.add(name)
    if stat.S_ISREG(status.st_mode):
        tree.files[name] = Stamp(status.st_size, status.st_mtime_ns)


def shown_name(name: str) -> str:
    """A file's name in a message."""
    return name if name.isprintable() else repr(name)


def is_directory(path: str) -> bool:
    """Raises OSError if that is not certain."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False


def is_removed(folder: str, name: str) -> bool:
    """Whether the file is certainly not there. A directory that became a link to one in the folder has lost its files.

    An error other than "no such file" is no proof.
    """
    for parent in list(_with_parents(name))[1:]:
        path = os.path.join(folder, parent)
        if os.path.islink(path) and os.path.isdir(path):
            return _is_inside(path, folder)
    try:
        os.lstat(os.path.join(folder, name))
    except OSError as error:
        return error.errno in _GONE
    return False


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = os.path.dirname(name)


def _is_inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder).rstrip("/") + "/")
