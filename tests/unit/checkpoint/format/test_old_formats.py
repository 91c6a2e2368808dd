"""Checkpoints that earlier versions of this library have written still load, and their damage is still found."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, NoUsableCheckpoint
from perdure.checkpoint.format import digest, manifest
from perdure.checkpoint.format.block_digests import BLOCK_BYTES
from unit.checkpoint.training_program import Restart

# Written by the library when it had only format 1: path in the directory → content, compressed.
FORMAT_1 = {
    "checkpoint-000000000007-0of1-bec3a7cf.safetensors": (
        "eNplUFFqwzAMzXYSo28zkrZkkI+tX4OeITbBbZytkLTGVmhLMPQoO2plx4WwCdlYenp6kq8vWbQJmmbQqFqFqmmgmsBo245WQwWTgO5sB4UCKlZw"
        "JgCt1iEgpD0eYr6uBTjURgBn75IzCi/hTSXKWnULNbmfgVMCltz98ftveZHKMQE4mj7K1jTEaex76WX0MFJkuWe3KE1C42CoVVJ9SxopX330BEkP"
        "ns9Y2LrFmwk778oNcHA/KkT1SnKIP3PuOqfRUSrnRUnKcFmyvtarJYuv//OKkm9y6T2bLX1/9pot7f5J15aczp3O7/YBCXB2og=="
    ),
    ".perdure/checkpoint-000000000007-ec34f651.json": (
        "eNqVkt1uhCAQhe99CsN1NQKutvscvWrTmFkcVloVA+xfN/vuHdjt711NSDyfnMPM4DnLmbZugsDWOb8jtTjU5kiKqQHV22LNHFj84AMuhNv4rhxC"
        "wL5LNiYq0RScF6J5FGLN5VrwctXWouFPyanNiJ42Pmd5fqZFh0AYfh9RVN9PW1RW82KDSkKrdOlBY8DZW+djHvm9eUfy16K+6t5s0ada6lquWo0N"
        "cN1IAaIFlCChQqJy81DfAmDcWmfCMEXP8TjIgov7z3CYlhH/ETYFM2E3pxZfrkg5JQXpgpO8ZHnEbMIAPQQgfr5EcKASqLFuc4qIdrIA/q0zPcl5"
        "N44xi73azR+yxRkdBGPnn1TvZvWXDfY6lf2USmVLCpKNeEjyYN3Yd7dhRlOWp7r26Dwl+c+qllMYUjCTJedlew2bd9NySvdf1mXDbl5q0hnlv3pM"
        "V+x3adBpKvSDAK/0asWyywdymK1Z"
    ),
}


def test_format_1__loads(tmp_path: Path) -> None:
    for name, text in FORMAT_1.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(text)))
    with Checkpointer(tmp_path) as checkpointer:
        if digest.preferred_algorithm() == digest.CRC_32:
            pytest.skip("the digests of this checkpoint need the package xxhash")
        loaded = checkpointer.load()
        assert loaded["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert loaded["n"]["big"].dtype.str == ">i8"
        assert (loaded["step"], loaded["n"]["t"]) == (7, (1, None))
        target = {"step": 0, "w": np.zeros((2, 3), np.float32), "n": {"big": np.zeros(2, ">i8"), "t": (0, None)}}
        assert checkpointer.load(into=target)["w"].tolist() == loaded["w"].tolist()
        checkpointer.save(8, {"step": 8})
        assert [info.step for info in checkpointer.steps(verify=True)] == [8, 7]
        assert [info.state for info in checkpointer.steps()] == ["committed", "committed"]


def test_format_1__large_file_loads_and_its_damage_is_found(tmp_path: Path, restart: Restart) -> None:
    """Its file has one digest of all of its content."""
    weights = np.random.default_rng(0).random(BLOCK_BYTES // 4)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": weights})
    (path,) = (tmp_path / ".perdure").glob("*.json")
    document = json.loads(path.read_text())
    (record,) = document["files"]
    assert record.pop("block_bytes") == BLOCK_BYTES
    assert len(record.pop("blocks")) == 3 * len(record["digest"])
    part = tmp_path / record["path"]
    record["digest"] = digest.hash_file(str(part), record["algorithm"])
    del document["checksum"]
    document["format"] = 1
    path.write_text(json.dumps({**document, "checksum": manifest._checksum(document)}))
    restart()
    assert np.array_equal(Checkpointer(tmp_path).load()["w"], weights)
    target = {"w": np.zeros_like(weights)}
    assert np.array_equal(Checkpointer(tmp_path).load(into=target)["w"], weights)
    content = bytearray(part.read_bytes())
    content[-9] ^= 1
    part.write_bytes(content)
    target = {"w": np.zeros_like(weights)}
    for into in (None, target):
        with pytest.raises(NoUsableCheckpoint, match="differs from what was saved"):
            Checkpointer(tmp_path).load(into=into)
    assert not target["w"].any()
