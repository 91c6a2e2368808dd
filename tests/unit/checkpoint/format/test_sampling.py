"""The modes of verification: what each detects, and what it misses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, load_checkpoint, save_checkpoint, steps
from perdure.checkpoint import __main__ as command
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.format import sampling

SIZE = 8 * 1024 * 1024
SPANS = sampling.sample_spans(SIZE)
GAP = SPANS[1][0] - SPANS[0][1]


def content(step: int) -> bytes:
    return np.random.default_rng(step).bytes(SIZE)


def by_decorators(root: Path) -> Callable[[str], int | None]:
    @save_checkpoint(root)
    def save(step: int) -> None:
        (root / f"model_{step}.pt").write_bytes(content(step))

    for step in (1, 2):
        save(step)
    return lambda verify: load_checkpoint(root, verify=verify)(lambda step: step)()


def by_checkpointer(root: Path) -> Callable[[str], int | None]:
    with Checkpointer(root) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"w": content(step), "step": step})
    return lambda verify: Checkpointer(root).load(verify=verify)["step"]


def by_folders(root: Path) -> Callable[[str], int | None]:
    for step in (1, 2):
        with Folders(root).saving(step) as path:
            Path(path, "part").write_bytes(content(step))

    def newest(verify: str) -> int | None:
        newest = Folders(root).newest(verify=verify)
        return newest.step if newest else None

    return newest


def newest_file(root: Path) -> Path:
    (record,) = json.loads(next(root.glob(".perdure/*-000000000002-*.json")).read_text())["files"]
    return root / record["path"]


def change(path: Path, begin: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        old = file.read(length)
        file.seek(begin)
        file.write(bytes(byte ^ 1 for byte in old))


DAMAGES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "one bit between the pieces": (
        lambda path: change(path, sampling.sample_spans(SIZE)[3][1] + GAP // 2, 1),
        {"full"},
    ),
    "a hole": (lambda path: change(path, SIZE // 2, 2 * GAP), {"full", "sampled"}),
    "the last byte": (lambda path: change(path, path.stat().st_size - 1, 1), {"full", "sampled"}),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]) and None, {"full", "sampled", "size"}),
}


@pytest.mark.parametrize("saved_by", [by_decorators, by_checkpointer, by_folders])
@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_mode__detects_what_it_promises(
    tmp_path: Path, saved_by: Callable[[Path], Callable[[str], int | None]], damage: str
) -> None:
    load = saved_by(tmp_path)
    assert [load(mode) for mode in sampling.MODES] == [2, 2, 2]
    do, detected_by = DAMAGES[damage]
    do(newest_file(tmp_path))
    # The weakest first: what the others find they also mark, and a mark is believed by all.
    assert {mode for mode in reversed(sampling.MODES) if load(mode) == 1} == detected_by
    assert load("size") == 1


def test_verify_mode__sizes_never_remove_a_mark(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": content(1)})
        change(newest := next(tmp_path.glob("*.safetensors")), SIZE // 2, 1)
        for mode in ("full", "size", "sampled"):
            with pytest.raises(Exception, match="none of the 1 checkpoints"):
                checkpointer.load(verify=mode)
        change(newest, SIZE // 2, 1)
        assert checkpointer.load(verify="size") is not None
        assert [info.state for info in checkpointer.steps()] == ["committed"]


def test_verify_mode__full_if_there_is_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.Sampler, "hexdigest", lambda self: "")
    load = by_checkpointer(tmp_path)
    monkeypatch.undo()
    change(newest_file(tmp_path), sampling.sample_spans(SIZE)[3][1] + GAP // 2, 1)
    assert load("sampled") == 1


@pytest.mark.parametrize(("how", "code"), [("full", 1), ("sampled", 0), ("size", 0)])
def test_command__verify_option(tmp_path: Path, how: str, code: int) -> None:
    by_checkpointer(tmp_path)
    change(newest_file(tmp_path), sampling.sample_spans(SIZE)[3][1] + GAP // 2, 1)
    assert command.main(["verify", str(tmp_path), "--verify", how]) == code


def test_verify_mode__rejects_others(tmp_path: Path) -> None:
    for call in (
        lambda: Checkpointer(tmp_path).load(verify="half"),
        lambda: load_checkpoint(tmp_path, verify="half"),
        lambda: Folders(tmp_path).newest(verify="half"),
        lambda: steps(tmp_path, verify="half"),
    ):
        with pytest.raises(ValueError, match="'full', 'sampled', 'size', not 'half'"):
            call()


def test_sampler__independent_of_block_sizes(tmp_path: Path) -> None:
    data = memoryview(content(3))
    (tmp_path / "file").write_bytes(data)
    for cuts in (1000, 65536, 100_001, SIZE):
        sampler = sampling.Sampler("crc32", SIZE)
        for begin in range(0, SIZE, cuts):
            sampler.update(data[begin : begin + cuts])
        assert sampler.hexdigest() == sampling.hash_sample(str(tmp_path / "file"), "crc32", SIZE)
