"""What a manifest says of the content of its files."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from perdure.checkpoint import Checkpointer, load_checkpoint, save_checkpoint
from perdure.checkpoint.durability.file_version import UNKNOWN, FileVersion
from perdure.checkpoint.format import manifest
from perdure.checkpoint.format.manifest import Manifest


def only_manifest(directory: Path) -> Manifest:
    (entry,) = manifest.list_manifests(str(directory))
    return manifest.load(str(directory), entry.name)


def test_file_versions__of_files_whose_names_may_be_used_again(save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"weights")
        (save_dir / "train.log").write_bytes(b"step 1")

    save(1)
    loaded = only_manifest(save_dir)
    versions = loaded.file_versions(str(save_dir))
    assert versions.pop(manifest.path_of(str(save_dir), loaded.name)) is None, "no manifest's name is used twice"
    for name, crc32 in (("model_1.pt", -1), ("train.log", zlib.crc32(b"step 1"))):
        version = versions[str(save_dir / name)]
        assert isinstance(version, FileVersion)
        assert version.matches(*(lambda seen: (seen.st_size, seen.st_mtime_ns))(os.stat(save_dir / name)))
        assert version.crc32 == crc32, "only a file that is not named after its step may grow"


def test_file_versions__of_a_checkpointers_parts_are_their_names(save_dir: Path) -> None:
    with Checkpointer(save_dir) as checkpointer:
        checkpointer.save(1, {"step": 1})
    assert set(only_manifest(save_dir).file_versions(str(save_dir)).values()) == {None}


def test_file_versions__of_an_older_librarys_manifest_are_unknown(save_dir: Path) -> None:
    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"weights")

    save(1)
    (entry,) = manifest.list_manifests(str(save_dir))
    path = Path(manifest.path_of(str(save_dir), entry.name))
    document = json.loads(path.read_text())
    del document["checksum"]
    for record in document["files"]:
        del record["mtime_ns"], record["crc32"]
    document["checksum"] = manifest._checksum(document)
    path.write_text(json.dumps(document))
    versions = only_manifest(save_dir).file_versions(str(save_dir))
    assert versions == {str(save_dir / "model_1.pt"): UNKNOWN, str(path): None}


def test_file_record__is_the_same_whatever_its_time() -> None:
    one = manifest.FileRecord("a", 1, "00", "crc32", "", (1, 2), 3)
    assert one == manifest.FileRecord("a", 1, "00", "crc32")
    assert hash(one) == hash(manifest.FileRecord("a", 1, "00", "crc32"))


DEEP = "[" * 200_000
ODD_VALUES: list[Any] = [
    float("inf"),
    float("nan"),
    10**400,
    -1,
    None,
    True,
    "x",
    "a\0b",
    "\ud800",
    [],
    {},
    [[]],
    {"a": []},
]


@pytest.fixture
def two_steps(save_dir: Path) -> tuple[Path, Path]:
    """Steps 1 and 2 in a directory, and the manifest of step 2."""

    @save_checkpoint(save_dir)
    def save(step: int) -> None:
        (save_dir / f"model_{step}.pt").write_bytes(b"weights")

    save(1)
    save(2)
    (path,) = (save_dir / ".perdure").glob("*-000000000002-*.json")
    return save_dir, path


@pytest.mark.parametrize("content", [DEEP, '{"a":' * 200_000, "9" * 5000, '{"format": 1, "step": Infinity}'])
def test_load__falls_back_past_a_manifest_that_is_no_plain_json(two_steps: tuple[Path, Path], content: str) -> None:
    save_dir, path = two_steps
    path.write_text(content)
    assert load_checkpoint(save_dir)(lambda step: step)() == 1


def test_load__falls_back_although_the_mark_is_no_plain_json(two_steps: tuple[Path, Path]) -> None:
    save_dir, path = two_steps
    (save_dir / "model_2.pt").write_bytes(b"?")
    Path(f"{path}.damaged").write_text(DEEP)
    assert load_checkpoint(save_dir)(lambda step: step)() == 1


@pytest.mark.parametrize("of_the_file", [False, True])
def test_load__any_value_in_a_manifest_is_accepted_or_damage(two_steps: tuple[Path, Path], of_the_file: bool) -> None:
    """Also with a checksum that matches. Whatever it says of the file, no other exception leaves the load."""
    save_dir, path = two_steps
    whole = json.loads(path.read_text())
    del whole["checksum"]
    for key in whole["files"][0] if of_the_file else whole:
        for value in ODD_VALUES:
            document = json.loads(json.dumps(whole))
            (document["files"][0] if of_the_file else document)[key] = value
            document["checksum"] = manifest._checksum(document)
            path.write_text(json.dumps(document))
            assert load_checkpoint(save_dir)(lambda step: step)() in (1, 2), (key, value)


def test_load__digests_of_blocks_that_no_save_records_are_damage(save_dir: Path) -> None:
    with Checkpointer(save_dir) as checkpointer:
        checkpointer.save(1, {"w": bytes(9 * 2**20)})
    loaded = only_manifest(save_dir)
    (record,) = loaded.files
    path = Path(manifest.path_of(str(save_dir), loaded.name))
    assert len(record.block_digests) == 3
    wrong: list[dict[str, Any]] = [
        {"block_bytes": 0},
        {"block_bytes": 2**30},
        {"block_bytes": 1000},
        {"block_bytes": -4096},
        {"blocks": ""},
        {"blocks": record.blocks[:-1]},
        {"blocks": record.blocks[: len(record.digest)]},
        {"blocks": "x" + record.blocks[1:]},
        {"size": 100},
        {"size": 2**40},
    ]
    for change in wrong:
        document = json.loads(path.read_text())
        del document["checksum"]
        document["files"][0].update(change)
        whole = path.read_text()
        path.write_text(json.dumps({**document, "checksum": manifest._checksum(document)}))
        with pytest.raises(manifest.ManifestDamaged):
            only_manifest(save_dir)
        path.write_text(whole)
    assert only_manifest(save_dir) == loaded
