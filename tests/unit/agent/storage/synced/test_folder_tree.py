from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.agent.storage.snapshot import Stamp
from perdure.agent.storage.synced.folder_tree import is_removed, read_tree


def test_tree__has_the_files_and_the_links_that_lead_to_one(tmp_path: Path) -> None:
    (tmp_path / "top/sub").mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("abc")
    (tmp_path / "top/sub/a").write_text("a")
    (tmp_path / "top/.mark").write_text("left out")
    (tmp_path / "top/link").symlink_to(tmp_path / "elsewhere")
    tree = read_tree(str(tmp_path / "top"), without=".mark")
    assert tree.files.keys() == {"sub/a", "link"}
    assert tree.files["link"] == Stamp.of(str(tmp_path / "elsewhere"))
    assert tree.links == {"link"}


def test_links_to_directories__are_ignored_or_a_problem_if_they_lead_out(tmp_path: Path) -> None:
    (tmp_path / "top/step-1").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "top/latest").symlink_to("step-1")
    (tmp_path / "top/lost").symlink_to("nowhere")
    (tmp_path / "top/data").symlink_to(tmp_path / "outside")
    tree = read_tree(str(tmp_path / "top"))
    assert tree.ignored.keys() == {"latest", "lost"}
    assert tree.problems.keys() == {"data"}


def test_missing_root__is_an_error_and_not_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_tree(str(tmp_path / "top"))


def test_link_that_cannot_be_followed__is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a").write_text("a")
    tree = read_tree(str(tmp_path))
    assert tree.files.keys() == {"a"}
    assert tree.problems.keys() == {"loop"}


def test_directory_that_cannot_be_read__hides_its_files(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    folder = top
    for _ in range(25):  # deeper than a path may be long
        os.mkdir("d" * 200, dir_fd=folder)
        folder = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
    tree = read_tree(str(tmp_path))
    (problem,) = tree.problems
    assert tree.hides(f"{problem}/model.pt")
    assert not tree.hides("model.pt")


def test_removed__is_only_what_is_certainly_not_there(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1/a").write_text("a")
    (tmp_path / "file").write_text("a")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latest").symlink_to("step-1")
    names = ("step-1/a", "file", "dangling", "loop", "loop/a", "gone", "gone/a", "file/a", "latest/a")
    assert [name for name in names if is_removed(str(tmp_path), name)] == ["gone", "gone/a", "file/a", "latest/a"]
