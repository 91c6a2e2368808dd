"""A download takes the place of an earlier one only when it is complete, and no controller chooses its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.sdk.connection.endpoint import ClientError
from perdure.sdk.files.downloads import folder_name, replacing, whole_number


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


def test_folder_name__is_one_part_of_a_path() -> None:
    assert folder_name(7, "bert.v1") == "7-bert.v1"
    assert folder_name(7, "../../x\0") == "7-..-..-x-"
    for wrong in ("/etc", "..", True, None, 1.5):
        with pytest.raises(ClientError):
            whole_number(wrong)
        with pytest.raises(ClientError):
            folder_name(wrong, "x")
