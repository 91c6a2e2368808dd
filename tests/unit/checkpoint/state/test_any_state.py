"""No state comes back with another number: random nested states of every framework that is installed, against a copy.

A generated state says whether it may be saved. If so, every value must come back with its type and its bits. If not,
it must be rejected with its place, before anything is written.
"""

from __future__ import annotations

import math
import random
import struct
import tempfile
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest

from perdure.checkpoint.load.part_files import make_content
from perdure.checkpoint.save.parts.staging import Staging
from perdure.checkpoint.state import container
from perdure.checkpoint.state.tree import UnsupportedValue, flatten

Make = Callable[[random.Random], Any]

KEYS = ["a", "b", "a.b", "a.b#1", "a.b#2", "b#3", "__metadata__", "", "state", 0, 1, "1", -7, 2.5, None]
KEYS += ["\ud800", "\U00010000", "\ud800\udc00"]  # the last two are one and the same in JSON


class Kind(IntEnum):
    ONE = 1


class Moments(NamedTuple):
    mu: Any
    nu: Any


class Tagged(dict[Any, Any]):
    pass


class Ratio(float):
    pass


# --- leaves ---------------------------------------------------------------------------------------------------


def numpy_arrays() -> tuple[list[Make], list[Make]]:
    names = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", ">f4", ">i8", ">c8"]
    names += [">u2", "q", ">q", "Q"]
    base = {name: np.frombuffer(random.Random(7).randbytes(16 * 24), np.uint8)[: 24 * 8] for name in names}
    pool = [base[name].view("u1")[: 24 * np.dtype(name).itemsize].view(name).reshape(4, 6) for name in names]
    pool = [array if array.dtype != bool else array.view("u1") % 2 == 1 for array in pool]
    views: list[Callable[[Any], Any]] = [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::2, 1:],
        lambda a: a[::-1],
        lambda a: a[:0],
        lambda a: a[1, 2],
        lambda a: np.broadcast_to(a[:1], (3, 6)),
        lambda a: a[1, 2, ...],
        lambda a: a.copy(order="F"),
    ]
    good: list[Make] = [lambda r: r.choice(views)(r.choice(pool))]
    warnings.simplefilter("ignore", PendingDeprecationWarning)  # about matrices
    bad: list[Make] = [
        lambda _: np.ma.masked_array([1.0, 2.0], [True, False]),
        lambda _: np.asmatrix([[1.0]]),
        lambda _: np.array([object()]),
        lambda _: np.array(["text"]),
        lambda _: np.zeros(2, [("a", "f4"), ("b", "i4")]),
        lambda _: np.datetime64("2026-01-01"),
        lambda _: np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        lambda _: np.longdouble(1.5),
        lambda _: memory_map(),
    ]
    return good, bad


def memory_map() -> Any:
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, "f4", "w+", shape=(3,))


def torch_tensors() -> tuple[list[Make], list[Make]]:
    torch = pytest.importorskip("torch")
    warnings.simplefilter("ignore")  # about nested, sparse and quantized tensors, which are only rejected here
    names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16"]
    names += ["uint32", "uint64", "bool", "complex64"]
    names += ["float8_e5m2", "float8_e4m3fn"]
    raw = torch.frombuffer(bytearray(random.Random(8).randbytes(8 * 24)), dtype=torch.uint8)
    pool = []
    for name in names:
        dtype = getattr(torch, name)
        taken = raw % 2 if name == "bool" else raw
        pool.append(taken[: 24 * dtype.itemsize].clone().view(dtype).reshape(4, 6))
    pool += [raw[:96].view(torch.float32).reshape(4, 6), raw[:96].view(torch.int32).reshape(4, 6)]  # of one memory
    imaginary = next(one for one in pool if one.is_complex())
    views: list[Callable[[Any], Any]] = [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[::2, 1:],
        lambda t: t[:0],
        lambda t: t[1, 2],
        lambda t: t[:1].expand(3, 6),
        lambda t: t.as_strided((3, 4), (2, 1)),
        lambda t: t[1:],
        lambda t: torch.nn.Parameter(t, requires_grad=False),
    ]
    complex_views: list[Callable[[], Any]] = [
        imaginary.conj,
        lambda: imaginary.imag,
        lambda: imaginary.real,
        lambda: imaginary.conj().imag,
        lambda: imaginary.conj().real,
        lambda: imaginary.t().conj(),
        lambda: imaginary[1:].conj()[:, 2:],
    ]
    good: list[Make] = [lambda r: r.choice(views)(r.choice(pool)), lambda r: r.choice(complex_views)()]
    plain = pool[1]
    bad: list[Make] = [
        lambda _: plain.to_sparse(),
        lambda _: torch.zeros(2, 2).to_sparse_csr(),
        lambda _: torch.empty(2, device="meta"),
        lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda _: torch.zeros(2, dtype=torch.complex128),
        lambda _: plain.as_subclass(type("Scaled", (torch.Tensor,), {})),
        lambda _: torch.float32,
    ]
    if "fbgemm" in torch.backends.quantized.supported_engines or "x86" in torch.backends.quantized.supported_engines:
        bad.append(lambda _: torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8))
    return good, bad


def jax_arrays() -> tuple[list[Make], list[Make]]:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    names = ["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool"]
    names += ["complex64", "float8_e5m2"]
    pool = [jnp.asarray(np.arange(24).reshape(4, 6) % 5).astype(name) for name in names]
    pool += [jnp.zeros((0, 3)), jnp.float32(2.5), pool[0].T, jax.random.key(3), jax.random.split(jax.random.key(4), 3)]
    pool += [jax.random.key(5, impl="rbg"), jax.random.PRNGKey(6)]
    return [lambda r: r.choice(pool)], [lambda _: jnp.zeros(2, "int4")]


def special_nan(r: random.Random) -> float:
    """A NaN of any sign and payload."""
    (value,) = struct.unpack(">d", bytes([r.choice([0x7F, 0xFF]), 0xF0 | r.randrange(16), *r.randbytes(5), 1]))
    assert math.isnan(value)
    return float(value)


def plain_values() -> tuple[list[Make], list[Make]]:
    good: list[Make] = [
        lambda r: r.choice([None, True, False, 0, -1, 2**63, -(2**200), 10**4999, "", "text", "\ud83d", "é"]),
        lambda r: r.choice([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308]),
        lambda r: struct.unpack("d", r.randbytes(8))[0],
        special_nan,
        lambda r: complex(r.choice([0.0, -0.0, math.inf, special_nan(r)]), r.choice([-0.0, math.nan, special_nan(r)])),
        lambda r: "".join(r.choices(["a", "\ud800", "\udc00", "\U00010000", "\0"], k=4)),
        lambda r: r.randbytes(r.randrange(5)),
        lambda r: bytearray(r.randbytes(r.randrange(5))),
        lambda r: r.choice([np.float32(1.5), np.int8(-3), np.float64(-0.0), np.bool_(True), np.complex64(1 - 2j)]),
        lambda r: r.choice([np.longlong(3), np.ulonglong(4), np.intc(5), np.half(-0.0)]),
    ]
    bad: list[Make] = [
        lambda _: Kind.ONE,
        lambda _: Ratio(1.5),
        lambda _: Tagged(a=1),
        lambda _: defaultdict(lambda: 0),
        lambda _: object(),
        lambda _: len,
        lambda _: {Kind.ONE: 1},
        lambda _: {(1, 2): 1},
        lambda _: {b"x"},
    ]
    return good, bad


# --- containers -----------------------------------------------------------------------------------------------


def containers(r: random.Random, item: Callable[[], Any]) -> Any:
    size = r.randrange(4)
    keys = r.sample(KEYS, size)
    makes: list[Callable[[], Any]] = [
        lambda: {key: item() for key in keys},
        lambda: OrderedDict((key, item()) for key in keys),
        lambda: defaultdict(list, {key: item() for key in keys}),
        lambda: Counter({key: r.randrange(-3, 9) for key in keys}),
        lambda: [item() for _ in range(size)],
        lambda: tuple(item() for _ in range(size)),
        lambda: deque((item() for _ in range(size)), maxlen=r.choice([None, 9])),
        lambda: set(keys),
        lambda: frozenset((key, r.randrange(3)) for key in keys),
        lambda: Moments(item(), item()),
    ]
    return r.choice(makes)()


def make_state(r: random.Random, good: list[Make], bad: list[Make], *, is_valid: bool) -> Any:
    left = [r.randrange(1, 16)]

    def item(depth: int = 0) -> Any:
        left[0] -= 1
        if left[0] > 0 and depth < 5 and r.random() < 0.45:
            return containers(r, lambda: item(depth + 1))
        return r.choice(good)(r)

    state = {"": item(), "a": {"b": item()}, "a.b": item(), "x": [item(), item()]}
    if not is_valid:
        state["x"] = [{"y": (r.choice(bad)(r),)}]
    return state


# --- comparison -----------------------------------------------------------------------------------------------


def bits(value: Any) -> Any:
    """A value of any supported kind as plain data that is equal only for the same type and the same bits."""
    kind = type(value)
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if kind is float:
        return (name, struct.pack("d", value))
    if kind is complex:
        return (name, struct.pack("dd", value.real, value.imag))
    if isinstance(value, dict):
        extra = getattr(value, "default_factory", None)
        return (name, extra, [(bits(key), bits(one)) for key, one in value.items()])
    if isinstance(value, (list, tuple, deque)):
        return (name, getattr(value, "maxlen", None), [bits(one) for one in value])
    if isinstance(value, (set, frozenset)):
        return (name, sorted(map(repr, map(bits, value))))
    if name.startswith("torch."):
        return array_bits("torch", value.detach().resolve_conj().resolve_neg().contiguous())
    if name.startswith(("jax.", "jaxlib.")):
        return array_bits(f"jax {value.dtype}", value)
    if isinstance(value, (np.ndarray, np.generic)):
        return array_bits(name, np.asarray(value))
    return (name, value)


def array_bits(name: str, value: Any) -> Any:
    if name == "torch":
        import torch

        raw = value.reshape(-1).view(torch.uint8) if value.numel() else value.reshape(-1)
        return (name, str(value.dtype), tuple(value.shape), bytes(raw.numpy()) if value.numel() else b"")
    if "key<" in name:
        import jax

        value = jax.random.key_data(value)
    array = np.asarray(value)
    return (name, str(array.dtype), array.dtype.char, array.shape, array.tobytes())


def round_trips(state: Any) -> Iterator[Any]:
    """The state as loaded: of a copy that was staged, and of pieces that were written from its own memory."""
    flat = flatten(state)
    layout = container.plan_layout(flat)
    staged = bytes(Staging().copy(flat, layout))
    direct = b"".join(make_content(flat, layout).pieces)
    assert staged == direct
    yield container.parse(memoryview(bytearray(direct)))


LEAVES: dict[str, Callable[[], tuple[list[Make], list[Make]]]] = {
    "plain": plain_values,
    "numpy": numpy_arrays,
    "torch": torch_tensors,
    "jax": jax_arrays,
}


def check(cases: int, framework: str, seed: int) -> None:
    good, bad = LEAVES[framework]()
    more_good, more_bad = plain_values()
    for case in range(cases):
        r = random.Random(f"{framework}-{seed}-{case}")
        is_valid = r.random() < 0.9
        state = make_state(r, [*good, *good, r.choice(more_good)], bad + more_bad, is_valid=is_valid)
        if not is_valid:
            with pytest.raises(UnsupportedValue, match=r"^state\['x'\]\[0\]\['y'\]\[0\]"):
                flatten(state)
            continue
        expected = bits(state)
        for loaded in round_trips(state):
            assert bits(loaded) == expected, f"case {case}"
        assert bits(state) == expected, f"case {case} was changed by its save"


@pytest.mark.parametrize("framework", LEAVES)
def test_any_state__comes_back_bit_for_bit_or_is_rejected(framework: str) -> None:
    check(400, framework, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", LEAVES)
def test_any_state__one_hundred_thousand_come_back_bit_for_bit(framework: str) -> None:
    check(25_000, framework, seed=2)
