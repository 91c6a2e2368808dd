"""What `perdure start` asks before it deletes disks."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.cli.clusters.output import names_with_disks


@pytest.mark.parametrize(
    ("disks", "text"),
    [
        ([0], "a"),
        ([1], "a on new machines, and delete 1 kept disk"),
        ([2, 1], "a, b on new machines, and delete 3 kept disks"),
    ],
)
def test_question__says_how_many_disks_are_deleted(disks: list[int], text: str) -> None:
    chosen: Any = [{"name": name, "kept_disks": count} for name, count in zip("ab", disks, strict=False)]
    assert names_with_disks(chosen) == text
