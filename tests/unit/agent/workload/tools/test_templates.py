"""`~/sky_templates`."""

from __future__ import annotations

import os
from pathlib import Path

from perdure.agent.workload.library import library_dir
from perdure.agent.workload.tools.templates import FOLDER, link_templates


def test_templates__are_linked_but_never_over_something_else(tmp_path: Path) -> None:
    library, problems, link = library_dir(Path("/nonexistent")), list[str](), tmp_path / "sky_templates"
    link.symlink_to(f"/earlier/library/{FOLDER}")
    link_templates(tmp_path, library, log=problems.append)
    assert os.access(link / "ray/start_cluster", os.X_OK)
    link.unlink()
    link.mkdir()
    link_templates(tmp_path, library, log=problems.append)
    assert list(link.iterdir()) == []
    assert problems == []


def test_folder_that_cannot_be_written__is_logged(tmp_path: Path) -> None:
    problems: list[str] = []
    link_templates(tmp_path / "no such home", library_dir(Path("/nonexistent")), log=problems.append)
    assert len(problems) == 1
    assert problems[0].startswith("~/sky_templates cannot be made")
