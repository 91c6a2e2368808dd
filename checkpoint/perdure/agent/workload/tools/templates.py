"""`~/sky_templates`: the scripts that SkyPilot has on every node, such as `ray/start_cluster`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

FOLDER = "perdure/agent/workload/tools/sky_templates"
"""Their folder in the library; its files are executable."""
LINK = "sky_templates"


def link_templates(home: Path, library: Path, *, log: Callable[[str], None]) -> None:
    """Make `~/sky_templates` a link to the templates, unless the image or a user has made something else of it."""
    link, target = home / LINK, library / FOLDER
    try:
        if link.is_symlink() and os.readlink(str(link)) != str(target) and FOLDER in os.readlink(str(link)):
            link.unlink()  # of an earlier agent
        if not link.exists() and not link.is_symlink():
            link.symlink_to(target)
    except OSError as error:
        log(f"~/{LINK} cannot be made: {error}")
