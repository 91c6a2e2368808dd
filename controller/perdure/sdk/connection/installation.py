"""What is installed: the clouds that packages provide, found by entry points, and how to install an extra."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Whether `perdure` is on the package index. Until the first release, pip installs from a checkout; the documentation
# and deploy/ say the same (docs/contributing/release.md).
IS_PUBLISHED = False
_NAME = "perdure"
# Packages that add a cloud declare an entry point in this group, under the cloud's name.
CLOUD_ENTRY_POINTS = "perdure.clouds"


def install_command(extra: str) -> str:
    """How to install `extra` beside what is installed, as the part of a sentence."""
    if IS_PUBLISHED:
        return f"pip install '{_NAME}[{extra}]'"
    return f"pip install '.[{extra}]' in your checkout of Perdure"


def installed_clouds() -> tuple[str, ...]:
    """The names of the clouds that installed packages provide, Perdure itself included."""
    return tuple(dict.fromkeys(entry_point.name for entry_point in cloud_entry_points()))


def cloud_entry_points() -> tuple[EntryPoint, ...]:
    """The entry points of the clouds that installed packages provide. Finding them imports nothing of the packages."""
    return _cloud_entry_points(tuple(sys.path))


@cache
def _cloud_entry_points(_search_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # slow, and most commands need no other cloud

    return tuple(entry_points(group=CLOUD_ENTRY_POINTS))
