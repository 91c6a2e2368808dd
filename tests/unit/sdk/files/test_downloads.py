"""A download takes the place of an earlier one only when it is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.sdk.files.downloads import replacing


def test_replacing__keeps_the_earlier_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"earlier")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"earlier"
    assert path.read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"a part" + bytes([1 // 0]))
    assert path.read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["run.log"]
