"""What may be the directory of checkpoints, and the prefix of a series."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import Checkpointer, load_checkpoint, save_checkpoint
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.format.save_dir import root_of

USES = [Checkpointer, Folders, save_checkpoint, load_checkpoint]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://bucket/run", "is an address, not a directory: mount the bucket"),
        ("gs://b", "is an address"),
        ("$HOME/ck", "has \\$HOME in it: pass os.path.expandvars"),
        ("/x/${RUN}/y", "has \\$\\{RUN\\} in it"),
        ("", "empty name"),
    ],
)
def test_save_dir__what_is_no_directory_is_refused(
    use: Callable[[str], Any], text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        use(text)
    assert list(tmp_path.iterdir()) == []


def test_save_dir__names_that_only_look_alike(tmp_path: Path) -> None:
    for name in ("a:b", "cost 5$", "x$", "C:", "$1"):
        assert root_of(tmp_path / name) == os.path.realpath(tmp_path / name)
    assert root_of(os.fsencode(tmp_path)) == os.fsencode(os.path.realpath(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("use", [Checkpointer, Folders])
@pytest.mark.parametrize("prefix", ["", "a/b", ".hidden", "nul\0", "x" * 201, 5])
def test_prefix__is_the_beginning_of_names_of_files(use: Callable[..., Any], prefix: str | int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prefix"):
        use(tmp_path, prefix=prefix)
