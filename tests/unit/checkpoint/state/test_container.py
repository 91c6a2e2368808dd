"""A state as a file: supported values come back the same, and others are rejected by their place."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.save.parts.staging import Staging
from perdure.checkpoint.state import container
from perdure.checkpoint.state.document import _READERS
from perdure.checkpoint.state.plain_values import READERS
from perdure.checkpoint.state.tree import UnsupportedValue, flatten

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


class Color(IntEnum):
    RED = 1


class Fraction(float):
    pass


class Config(dict[str, int]):
    pass


class Adam(NamedTuple):
    count: int
    mu: Any


def nested(depth: int) -> list[Any]:
    state: list[Any] = []
    for _ in range(depth):
        state = [state]
    return state


def through_file(state: object) -> Any:
    flat = flatten(state)
    return container.parse(Staging().copy(flat, container.plan_layout(flat)))


def assert_same(loaded: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray):
        assert isinstance(loaded, np.ndarray)
        assert loaded.shape == expected.shape
        assert loaded.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        assert np.array_equal(loaded, expected, equal_nan=expected.dtype.kind in "fc")
        return
    assert type(loaded) is type(expected)
    if isinstance(expected, dict):
        assert list(loaded) == list(expected)
        for key in expected:
            assert_same(loaded[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(loaded) == len(expected)
        for one, other in zip(loaded, expected, strict=True):
            assert_same(one, other)
    else:
        assert loaded == expected


@given(STATES)
def test_state__comes_back_the_same(state: object) -> None:
    assert_same(through_file(state), state)


def test_state__keeps_values_that_json_lacks() -> None:
    state = OrderedDict(a=float("inf"), b=float("-inf"), c=np.float32(1.5), d={1: "int key", None: 0}, e=(1, [2, (3,)]))
    loaded = through_file(state)
    assert loaded == state
    assert type(loaded) is OrderedDict
    assert isinstance(loaded["c"], np.float32)
    assert np.isnan(through_file(float("nan")))


@pytest.mark.parametrize(
    "value",
    [
        Counter(a=2, b=-1),
        defaultdict(list, a=[1]),
        defaultdict(None, a=1),
        deque([1, [2]], maxlen=5),
        {1, "a", (2, (None,))},
        frozenset({1.5, True}),
        bytearray(b"\x00bytes"),
        complex(1, float("-inf")),
        Adam(3, {"w": [0.5]}),
        nested(90),
    ],
    ids=lambda value: type(value).__name__,
)
def test_state__keeps_the_type_of_every_container(value: object) -> None:
    loaded = through_file({"x": value})["x"]
    assert type(loaded) is type(value)
    assert loaded == value
    assert getattr(loaded, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(loaded, "default_factory", None) == getattr(value, "default_factory", None)


@pytest.mark.parametrize("text", ["\ud800\udc00", "a\ud800\udc00\ud800\udc00b", "\ud800\U00010000\udc00"])
def test_state__halves_of_a_surrogate_pair_stay_two_characters(text: str) -> None:
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    state = {text: np.ones(1), joined: np.zeros(1), "x": text}
    assert_same(through_file(state), state)


def test_state__floats_that_are_written_as_before() -> None:
    """An older version of this library reads them."""
    values = [float("nan"), float("-inf"), complex(1, float("nan")), "\ud800", 1.5]
    assert flatten(values).document == {
        "list": [{"float": "nan"}, {"float": "-inf"}, {"complex": ["1.0", "nan"]}, "\ud800", 1.5]
    }


def test_state__arrays_keep_their_byte_order() -> None:
    loaded = through_file({"w": np.arange(3, dtype=">i4"), "v": np.arange(3, dtype="i4")})
    assert loaded["w"].dtype.str == ">i4"
    assert loaded["w"].tolist() == [0, 1, 2]
    loaded["w"] += 1
    assert loaded["v"].dtype == np.int32


def test_state__integers_that_python_refuses_to_print() -> None:
    assert through_file([10**5000, {-(10**5000): 1}]) == [10**5000, {-(10**5000): 1}]


def test_state__namedtuple_of_a_class_that_is_gone_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = flatten(Adam(1, None))
    data = Staging().copy(flat, container.plan_layout(flat))
    monkeypatch.delitem(globals(), "Adam")
    with pytest.raises(CheckpointError, match="holds a Adam with the fields count, mu"):
        container.parse(data)


def test_state__places_that_read_alike_are_kept_apart() -> None:
    numbers = iter(range(10))
    state = {
        "a.b#3": np.full(1, next(numbers)),
        "a": {"b": np.full(1, next(numbers)), "b#3": np.full(1, next(numbers))},
        "a.b": np.full(1, next(numbers)),
        "a.b#4": np.full(1, next(numbers)),
        1: np.full(1, next(numbers)),
        "1": np.full(1, next(numbers)),
        "__metadata__": np.full(1, next(numbers)),
    }
    assert_same(through_file(state), state)
    assert_same(through_file({"__metadata__": np.ones(2)}), {"__metadata__": np.ones(2)})


def test_state__module_versions_stay_with_the_dict_of_a_module() -> None:
    saved: Any = OrderedDict(w=np.ones(2))
    saved._metadata = OrderedDict({"": {"version": 2}})
    loaded = through_file(saved)
    assert type(loaded) is OrderedDict
    assert loaded._metadata == {"": {"version": 2}}


def test_state__shared_memory_is_stored_once() -> None:
    weights = np.ones((64, 64))
    flat = flatten({"a": weights, "b": [weights]})
    assert len(flat.arrays) == 1
    loaded = through_file({"a": weights, "b": [weights]})
    assert loaded["a"] is loaded["b"][0]


def test_state__any_stride() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (base.T, base[::2, 1:], base[::-1]):
        assert np.array_equal(through_file(view), view)


def test_state__loaded_arrays_are_writable() -> None:
    loaded = through_file({"w": np.zeros(3)})
    loaded["w"] += 1
    assert loaded["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, {2, (3, b"x")}]}, r"state\['a'\]\[1\] has the item b'x'"),
        ({"a": lambda: 0}, r"state\['a'\] is a function"),
        ({"o": np.array([object()])}, r"state\['o'\] has elements of type object"),
        ({(1, 2): 3}, r"state has the key \(1, 2\)"),
        ({"n": namedtuple("Point", "x y")(1, 2)}, r"state\['n'\] is a Point"),
        (np.array(["text"]), "state has elements of type"),
        ({"e": Color.RED}, r"state\['e'\] is a Color, and a checkpoint holds no enumerations; save its `value`"),
        ({Color.RED: 1}, "state has the key <Color.RED"),
        ({"f": Fraction(0.5)}, r"state\['f'\] is a Fraction, which would come back as a plain float"),
        ({"d": Config(a=1)}, r"state\['d'\] is a Config, which would come back as a plain dict"),
        ({"d": defaultdict(lambda: 1)}, r"state\['d'\] is a defaultdict, which would come back as a plain dict"),
        ({"m": np.ma.masked_array([1.0, 2.0], [True, False])}, r"state\['m'\] is a MaskedArray"),
        ({"m": np.zeros(2).view(np.recarray)}, r"state\['m'\] is a recarray"),
        (nested(101), "is nested more than 100 levels deep, or contains itself"),
    ],
)
def test_flatten__rejects_unsupported_values_by_place(state: object, place: str) -> None:
    with pytest.raises(UnsupportedValue, match=place):
        flatten(state)


def test_flatten__rejects_memory_maps_but_not_their_content(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data", "f4", "w+", shape=3)
    with pytest.raises(UnsupportedValue, match=r"state\['m'\] is a memmap, .* save numpy\.asarray\(value\)"):
        flatten({"m": mapped})
    assert_same(through_file({"m": np.asarray(mapped)}), {"m": np.zeros(3, "f4")})


@given(STATES)
def test_staging__same_bytes_as_direct(state: object) -> None:
    from perdure.checkpoint.load.part_files import make_content

    flat = flatten(state)
    layout = container.plan_layout(flat)
    content = make_content(flat, layout)
    direct_io = b"".join(content.pieces)
    assert len(direct_io) == content.size
    assert direct_io == bytes(Staging().copy(flat, layout))


def test_staging__large_arrays_by_several_threads() -> None:
    large = np.arange(5_000_003, dtype=np.float64)
    state = {"odd": large[1:], "turned": large[:4_000_000].reshape(2000, 2000).T, "foreign": large.astype(">f8")}
    state["odd"].setflags(write=False)
    loaded = through_file(state)
    for name, array in state.items():
        assert np.array_equal(loaded[name], array), name


def test_container__other_tools_read_the_arrays() -> None:
    flat = flatten({"model": {"w": np.arange(3, dtype=np.float32)}, "step": 7})
    data = bytes(Staging().copy(flat, container.plan_layout(flat)))
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert header["model.w"] == {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
    assert np.frombuffer(data[begin:], dtype=np.float32).tolist() == [0, 1, 2]
    assert begin % 64 == 0


def test_state__torch_tensors_of_every_kind() -> None:
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
    loaded = through_file(state)
    for name, value in state.items():
        assert torch.equal(loaded[name], value), name
        assert loaded[name].dtype == value.dtype
    with pytest.raises(UnsupportedValue, match=r"state\['s'\] is a torch.sparse_coo"):
        flatten({"s": base.to_sparse()})


def test_container__readable_by_safetensors(tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    flat = flatten({"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False])})
    (tmp_path / "x").write_bytes(bytes(Staging().copy(flat, container.plan_layout(flat))))
    loaded = numpy_reader.load_file(tmp_path / "x")
    assert loaded["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["b"].tolist() == [True, False]


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 8, b"\xff" * 100, b"\x02" + b"\x00" * 7 + b"{}" + b"x" * 9])
def test_container__rejects_other_files(garbage: bytes) -> None:
    with pytest.raises(container.InvalidStateFile):
        container.parse(memoryview(bytearray(garbage)))


def with_header(edit: Callable[[Any], Any]) -> memoryview:
    """The file of a state, with a header that `edit` has changed."""
    flat = flatten({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    data = bytes(Staging().copy(flat, container.plan_layout(flat)))
    begin = 8 + int.from_bytes(data[:8], "little")
    header = edit(json.loads(data[8:begin]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(bytearray(len(text).to_bytes(8, "little") + text + data[begin:]))


@pytest.mark.parametrize(
    "edit",
    [
        lambda _: b"[" * 100_000,
        lambda header: {**header, "__metadata__": {"perdure": "[" * 100_000}},
        lambda header: {**header, "w": {**header["w"], "shape": [-2, -3]}},
        lambda header: {**header, "w": {**header["w"], "shape": [3]}},
        lambda header: {**header, "w": {**header["w"], "shape": [float("inf")]}},
        lambda header: {**header, "w": {**header["w"], "data_offsets": [0, 2**60]}},
        lambda header: {**header, "w": {**header["w"], "data_offsets": [-24, 24]}},
    ],
)
def test_container__rejects_damaged_headers(edit: Callable[[Any], Any]) -> None:
    with pytest.raises(container.InvalidStateFile):
        container.parse(with_header(edit))


def test_container__any_tree_is_read_or_rejected() -> None:
    """Every kind of container and of number, with content of any other."""
    odd: list[Any] = [
        None,
        5,
        -1.5,
        "x",
        "00",
        [],
        [[]],
        {},
        [1, 2],
        [5, []],
        [["x", []]],
        ["a", "b", "c"],
        {"list": 3},
    ]
    for kind in (*_READERS, *READERS):
        for content in odd:
            tree = json.dumps({"format": 1, "tree": {kind: content}, "arrays": [["w", "numpy"]]})
            data = with_header(lambda header, tree=tree: {**header, "__metadata__": {"perdure": tree}})
            with contextlib.suppress(container.InvalidStateFile, CheckpointError):
                container.parse(data)
