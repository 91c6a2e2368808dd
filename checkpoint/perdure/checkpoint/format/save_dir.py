"""The directory of checkpoints: what a `save_dir` argument may be, and the path that it resolves to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Union

# A directory, or a function that returns it and is called whenever the directory is needed.
SaveDir = Union[str, "os.PathLike[str]", Callable[[], Union[str, "os.PathLike[str]"]]]


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_VARIABLE = re.compile(r"\$(\{\w+\}|[A-Za-z_]\w*)")
_MAX_PREFIX_BYTES = 200  # the names of files begin with it, and have 255 bytes at most


def root_of(save_dir: SaveDir) -> str:
    """The absolute path of a save_dir, with `~` and symbolic links resolved. It need not exist.

    Raises ValueError for what is no path of a directory: an address of a bucket, a variable of a shell, an empty text.
    """
    path = os.path.expanduser(save_dir() if callable(save_dir) else save_dir)
    text = os.fsdecode(path)
    if not text:
        raise ValueError("the directory of the checkpoints has an empty name")
    if _URL.match(text):
        raise ValueError(
            f"{text} is an address, not a directory: mount the bucket (file_mounts with mode MOUNT_CACHED) and pass "
            "the path that it is mounted at"
        )
    if variable := _VARIABLE.search(text):
        raise ValueError(f"{text} has {variable.group()} in it: pass os.path.expandvars({text!r})")
    return os.path.realpath(path)


def check_prefix(prefix: str, name: str = "prefix") -> str:
    """The argument `name` itself. Raises ValueError if it cannot be the beginning of the names of files."""
    if not isinstance(prefix, str) or not prefix or "/" in prefix or "\0" in prefix or prefix.startswith("."):
        raise ValueError(f"{name} must be a name without `/` that does not begin with a dot, not {prefix!r}")
    if len(os.fsencode(prefix)) > _MAX_PREFIX_BYTES:
        raise ValueError(f"{name} has {len(os.fsencode(prefix))} bytes; at most {_MAX_PREFIX_BYTES} are possible")
    return prefix
