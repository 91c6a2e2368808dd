"""A state as a file: whatever can be written comes back the same; whatever can not is refused by its place."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from perdure.checkpoint.staging import Staging
from perdure.checkpoint.state import container, direct, streams
from perdure.checkpoint.state.buffers import large_buffer
from perdure.checkpoint.state.tree import Unsaveable, flatten

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))
ARRAYS = np_st.arrays(
    dtype=st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", ">f4", ">i8"]),
    shape=np_st.array_shapes(min_dims=0, min_side=0, max_side=4),
)
STATES = st.recursive(
    st.one_of(SCALARS, ARRAYS, st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def through_file(state: Any) -> Any:
    flat = flatten(state)
    return container.parse(Staging().copy(flat, container.layout(flat)))


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert found.shape == expected.shape
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind in "fc")
        return
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


@given(STATES)
def test_comes_back_the_same(state: Any) -> None:
    assert_same(through_file(state), state)


def test_keeps_what_json_has_no_word_for() -> None:
    state = OrderedDict(a=float("inf"), b=float("-inf"), c=np.float32(1.5), d={1: "int key", None: 0}, e=(1, [2, (3,)]))
    found = through_file(state)
    assert found == state
    assert type(found) is OrderedDict
    assert isinstance(found["c"], np.float32)
    assert np.isnan(through_file(float("nan")))


def test_shared_memory_is_stored_once_and_shared_again() -> None:
    weights = np.ones((64, 64))
    flat = flatten({"a": weights, "b": [weights]})
    assert len(flat.arrays) == 1
    found = through_file({"a": weights, "b": [weights]})
    assert found["a"] is found["b"][0]


def test_any_stride_is_written_in_order() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (base.T, base[::2, 1:], base[::-1]):
        assert np.array_equal(through_file(view), view)


def test_arrays_can_be_written_to_after_loading() -> None:
    found = through_file({"w": np.zeros(3)})
    found["w"] += 1
    assert found["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, {2, 3}]}, r"state\['a'\]\[1\] is a set"),
        ({"a": lambda: 0}, r"state\['a'\] is a function"),
        ({"o": np.array([object()])}, r"state\['o'\] has elements of type object"),
        ({(1, 2): 3}, r"state has the key \(1, 2\)"),
        ({"n": namedtuple("Point", "x y")(1, 2)}, r"state\['n'\] is a Point"),
        (np.array(["text"]), "state has elements of type"),
    ],
)
def test_refuses_by_place_what_can_not_be_written_down(state: Any, place: str) -> None:
    with pytest.raises(Unsaveable, match=place):
        flatten(state)


@given(STATES)
def test_direct_and_staged_bytes_are_the_same(state: Any) -> None:
    from perdure.checkpoint.shards import content_of

    flat = flatten(state)
    layout = container.layout(flat)
    content = content_of(flat, layout)
    direct = b"".join(content.pieces)
    assert len(direct) == content.size
    assert direct == bytes(Staging().copy(flat, layout))


def test_large_arrays_are_copied_whole_by_several_threads() -> None:
    large = np.arange(5_000_003, dtype=np.float64)
    state = {"odd": large[1:], "turned": large[:4_000_000].reshape(2000, 2000).T, "foreign": large.astype(">f8")}
    state["odd"].setflags(write=False)
    found = through_file(state)
    for name, array in state.items():
        assert np.array_equal(found[name], array), name


def test_other_tools_see_the_arrays_under_their_places() -> None:
    flat = flatten({"model": {"w": np.arange(3, dtype=np.float32)}, "step": 7})
    data = bytes(Staging().copy(flat, container.layout(flat)))
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert header["model.w"] == {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
    assert np.frombuffer(data[begin:], dtype=np.float32).tolist() == [0, 1, 2]
    assert begin % 64 == 0


def test_torch_tensors_of_every_kind() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {
        "plain": base,
        "transposed": base.t(),
        "bf16": base.bfloat16(),
        "bool": base > 3,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(base.clone()),
        "conjugate": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
    }
    found = through_file(state)
    for name, value in state.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype
    with pytest.raises(Unsaveable, match=r"state\['s'\] is a torch.sparse_coo"):
        flatten({"s": base.to_sparse()})


def test_reads_in_safetensors_own_library(tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    flat = flatten({"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False])})
    (tmp_path / "x").write_bytes(bytes(Staging().copy(flat, container.layout(flat))))
    found = numpy_reader.load_file(tmp_path / "x")
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].tolist() == [True, False]


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 8, b"\xff" * 100, b"\x02" + b"\x00" * 7 + b"{}" + b"x" * 9])
def test_what_is_no_state_is_said_to_be_none(garbage: bytes) -> None:
    with pytest.raises(container.NotAState):
        container.parse(memoryview(bytearray(garbage)))


@given(st.lists(st.binary(max_size=300), max_size=5), st.data())
def test_a_stream_comes_back_or_is_called_damaged(tmp_path_factory: Any, pieces: list[bytes], data: Any) -> None:
    from perdure.checkpoint.manifest import FileRecord

    path = tmp_path_factory.mktemp("stream") / "file"
    record = FileRecord("file", *streams.write(str(path), map(memoryview, pieces)))
    assert bytes(streams.read(str(path), record)) == b"".join(pieces)
    content = bytearray(path.read_bytes())
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(streams.Damaged, match="differs"):
            streams.read(str(path), record)


@pytest.fixture(params=["past the page cache", "through it"])
def a_disk(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "through it":
        monkeypatch.setattr(direct, "begin", lambda descriptor: False)
    return str(request.param)


@pytest.mark.parametrize("extra", [0, 1, direct.ALIGNMENT])
@pytest.mark.parametrize("cut", [0, 4096, streams.BLOCK_BYTES + 3])
@pytest.mark.usefixtures("a_disk")
def test_large_streams_come_back_however_they_are_cut(tmp_path: Path, extra: int, cut: int) -> None:
    from perdure.checkpoint.manifest import FileRecord

    size = 2 * streams.BLOCK_BYTES + extra
    content = large_buffer(size)
    content[:] = os.urandom(size)
    path = tmp_path / "file"
    written = streams.write(str(path), [content[:cut], content[cut:]], size_hint=size)
    assert written[0] == size
    assert path.read_bytes() == content
    record = FileRecord("file", *written)
    assert streams.read(str(path), record) == content  # from the page cache
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert streams.read(str(path), record) == content  # from the disk
    with path.open("r+b") as file:
        file.seek(size - 1)
        file.write(bytes([content[-1] ^ 1]))
    with pytest.raises(streams.Damaged, match="differs"):
        streams.read(str(path), record)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EFAULT])
def test_a_disk_that_refuses_direct_transfers_is_written_and_read_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    from perdure.checkpoint.manifest import FileRecord

    def is_direct(descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    write, read = os.pwrite, os.preadv

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if is_direct(descriptor):
            raise OSError(code, os.strerror(code))
        return write(descriptor, data, offset)

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if is_direct(descriptor):
            raise OSError(code, os.strerror(code))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(direct, "is_cached", lambda descriptor, size: False)
    content = os.urandom(3 * streams.BLOCK_BYTES + 1)
    path = str(tmp_path / "file")
    record = FileRecord("file", *streams.write(path, [memoryview(content)], size_hint=len(content)))
    assert (tmp_path / "file").read_bytes() == content
    assert streams.read(path, record) == content


def test_a_large_stream_that_can_not_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Input/output"):
        streams.write(str(tmp_path / "file"), [memoryview(bytes(2**26))], size_hint=2**26)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("hint", [0, 3_000_000, 2_000_000, 5_000_000])
def test_what_was_expected_of_a_streams_size_does_not_change_it(tmp_path: Path, hint: int) -> None:
    content = os.urandom(3_000_000)
    path = tmp_path / "file"
    size, *_ = streams.write(str(path), [memoryview(content)], size_hint=hint)
    assert (size, path.read_bytes()) == (len(content), content)


def test_a_disk_that_is_too_full_says_so_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    asked = []

    def pieces() -> Any:
        asked.append(1)
        yield memoryview(b"x")

    with pytest.raises(OSError, match=r"No space left|File too large"):
        streams.write(str(path), pieces(), size_hint=2**62)
    assert not asked
    assert not path.exists()


def test_large_buffers_have_the_size_asked_for() -> None:
    assert [len(large_buffer(size)) for size in (0, 1, 5000)] == [0, 1, 5000]
