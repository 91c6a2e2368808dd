"""Where checkpoints of a decorated function go: what `save_dir` may be, and the one path that it comes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Union

# A directory, or a function that names it when a call needs it.
SaveDir = Union[str, "os.PathLike[str]", Callable[[], Union[str, "os.PathLike[str]"]]]


def root_of(save_dir: SaveDir) -> str:
    """The one absolute path of a save_dir, `~` and symbolic links resolved, whether it exists or not."""
    return os.path.realpath(os.path.expanduser(save_dir() if callable(save_dir) else save_dir))
