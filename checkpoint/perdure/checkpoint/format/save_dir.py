"""The directory of checkpoints: what a `save_dir` argument may be, and the path that it resolves to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Union

# A directory, or a function that returns it and is called whenever the directory is needed.
SaveDir = Union[str, "os.PathLike[str]", Callable[[], Union[str, "os.PathLike[str]"]]]


def root_of(save_dir: SaveDir) -> str:
    """The absolute path of a save_dir, with `~` and symbolic links resolved. It need not exist."""
    return os.path.realpath(os.path.expanduser(save_dir() if callable(save_dir) else save_dir))
