"""The clouds that installed packages provide, found by their entry points."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Packages that add a cloud declare an entry point in this group, under the cloud's name.
CLOUD_ENTRY_POINTS = "perdure.clouds"


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
