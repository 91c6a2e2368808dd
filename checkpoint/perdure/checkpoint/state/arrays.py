"""Arrays of any framework as plain bytes, and back. To save, no framework is imported that the program did not import.

An array is one of NumPy, PyTorch or JAX, or `bytes` or a `bytearray`. Element types have the names of the safetensors
format, so that any tool for that format can read the files. Subclasses of arrays are rejected: what they add (a mask, a
scale, elements stored elsewhere) would be lost.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

# Element type → (bytes, NumPy's name, PyTorch's name); None if a framework has no such type.
_TYPES: dict[str, tuple[int, str | None, str | None]] = {
    "BOOL": (1, "bool", "bool"),
    "U8": (1, "uint8", "uint8"),
    "I8": (1, "int8", "int8"),
    "F8_E5M2": (1, "float8_e5m2", "float8_e5m2"),
    "F8_E4M3": (1, "float8_e4m3fn", "float8_e4m3fn"),
    "I16": (2, "int16", "int16"),
    "U16": (2, "uint16", "uint16"),
    "F16": (2, "float16", "float16"),
    "BF16": (2, "bfloat16", "bfloat16"),
    "I32": (4, "int32", "int32"),
    "U32": (4, "uint32", "uint32"),
    "F32": (4, "float32", "float32"),
    "C64": (8, "complex64", "complex64"),
    "F64": (8, "float64", "float64"),
    "I64": (8, "int64", "int64"),
    "U64": (8, "uint64", "uint64"),
}
# Kinds of arrays. NumPy's are followed by a colon and the character of the element type, with its byte order, if these
# are not the usual ones (">i", "=q"); those of typed random keys by a colon and the implementation.
_NUMPY, _SCALAR = "numpy", "numpy-scalar"
_JAX, _JAX_KEY = "jax", "jax-key"
_OF_NUMPY = {numpy: name for name, (_, numpy, _) in _TYPES.items() if numpy}
_OF_TORCH = {torch: name for name, (_, _, torch) in _TYPES.items() if torch}


class Array(NamedTuple):
    """One array of a state. `source` and `address` are valid as long as the state is kept alive."""

    kind: str  # the framework
    dtype: str
    shape: tuple[int, ...]
    write: Callable[[memoryview], None]  # fills a buffer of `nbytes` with the elements, in C order
    source: object  # equal for two arrays that share one memory
    address: int | None = None  # of its bytes, if they are in memory in the order and form in which they are saved

    @property
    def nbytes(self) -> int:
        return size_of(self.dtype, self.shape)

    def view(self) -> memoryview:
        """Its bytes in place, or a copy if they are not in memory in the form in which they are saved."""
        if self.address is not None:
            return memoryview((ctypes.c_char * self.nbytes).from_address(self.address)).cast("B")
        data = memoryview(bytearray(self.nbytes))
        self.write(data)
        return data


@dataclass(frozen=True)
class SavedArray:
    """One array of a file, of which only the description was read.

    It has the attributes by which arrays are compared.
    """

    number: int  # in the file
    kind: str
    element: str  # the name of its element type in the safetensors format
    shape: tuple[int, ...]
    begin: int  # where its bytes begin in the file
    file: str = ""  # the path of the file, relative to the directory, if it is another one than that of the state

    @property
    def nbytes(self) -> int:
        return size_of(self.element, self.shape)

    @property
    def dtype(self) -> str:
        """The name that frameworks have for its element type."""
        return str(_TYPES[self.element][1])

    @property
    def is_plain(self) -> bool:
        """Whether it comes back as an array that has its shape and its elements. That of a random key has not."""
        return self.kind.partition(":")[0] in (_NUMPY, "torch", _JAX)

    def is_floating_point(self) -> bool:
        """As the method of PyTorch's tensors. False for an array of another framework."""
        return self.kind == "torch" and self.element.startswith(("F", "BF"))


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array. Raises KeyError for an element type that does not exist."""
    return _TYPES[dtype][0] * prod(shape)


def as_array(value: Any) -> Array | None:
    """`value` as an array, or None if it is none. Raises TypeError for an array that cannot be saved as bytes."""
    if isinstance(value, (bytes, bytearray)):
        return _of_bytes(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        kind = _NUMPY if isinstance(value, numpy.ndarray) else _SCALAR
        return _of_numpy(numpy, numpy.asanyarray(value), kind, source=id(value))
    jax = sys.modules.get("jax")
    if jax is not None and numpy is not None and isinstance(value, jax.Array):
        return _of_jax(jax, numpy, value)
    return None


def restore_array(saved: SavedArray, data: memoryview) -> Any:
    """The array whose bytes are `data`, in the framework that it came from; it keeps `data` alive and may write to it.

    Raises CheckpointError when that framework cannot be imported.
    """
    kind, dtype, shape = saved.kind, saved.element, saved.shape
    if kind in ("bytes", "bytearray"):
        return bytes(data) if kind == "bytes" else bytearray(data)
    if kind == "torch":
        return _to_torch(require_module("torch"), dtype, shape, data)
    numpy = require_module("numpy")
    array = _to_numpy(numpy, dtype, shape, data)
    framework, _, variant = kind.partition(":")
    if framework in (_JAX, _JAX_KEY):
        return _to_jax(kind, array)
    if variant:
        array = array.astype(numpy.dtype(variant))
    return array[()] if framework == _SCALAR else array


def _of_bytes(value: bytes | bytearray) -> Array:
    if type(value) not in (bytes, bytearray):
        raise TypeError(f"is a {type(value).__qualname__}, a subclass of bytes; save bytes(value) instead")

    return Array(type(value).__name__, "U8", (len(value),), partial(_write_bytes, value), id(value))


def _write_bytes(value: bytes | bytearray, out: memoryview) -> None:
    out[:] = value


def _of_jax(jax: Any, numpy: Any, value: Any) -> Array:
    if not value.is_fully_addressable:
        raise TypeError("is spread over several processes: save it with Orbax into a folder of the checkpoint")
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        kind = f"{_JAX_KEY}:{jax.random.key_impl(value)}"
        return _of_numpy(numpy, numpy.asarray(jax.random.key_data(value)), kind, source=id(value))
    return _of_numpy(numpy, numpy.asarray(value), _JAX, source=id(value))


def _to_jax(kind: str, array: Any) -> Any:
    from perdure.checkpoint.errors import CheckpointError

    jax = require_module("jax")
    loaded = jax.numpy.array(array)
    if loaded.dtype != array.dtype:
        raise CheckpointError(
            f"the checkpoint holds JAX arrays of {array.dtype}, and this program would make {loaded.dtype} of them: "
            "set jax_enable_x64, as the program that saved it did"
        )
    return loaded if kind == _JAX else jax.random.wrap_key_data(loaded, impl=kind.partition(":")[2])


def _of_numpy(numpy: Any, value: Any, kind: str, source: object) -> Array:
    if type(value) is numpy.memmap:
        raise TypeError("is a memmap, which would come back as a plain array; save numpy.asarray(value)")
    if type(value) is not numpy.ndarray:
        raise TypeError(f"is a {type(value).__qualname__}, which would come back as a plain array; save its parts")
    dtype, native, variant = _describe_numpy(numpy, value.dtype, value.dtype.char)
    if dtype is None:
        advice = "convert it first"
        if value.dtype.kind == "c" and value.dtype.itemsize == 16:
            advice = "save array.view('float64'), which has the same bytes"
        raise TypeError(f"has elements of type {value.dtype}, which the file format does not have; {advice}")
    if variant and kind in (_NUMPY, _SCALAR):
        kind = f"{kind}:{variant}"
    is_plain = native and value.flags.c_contiguous and value.size
    address = value.__array_interface__["data"][0] if is_plain else None
    return Array(kind, dtype, value.shape, partial(_write_numpy, numpy, dtype, value), source, address)


@lru_cache(maxsize=64)
def _describe_numpy(numpy: Any, dtype: Any, char: str) -> tuple[str | None, bool, str]:
    """The name of an element type, None if it has none; whether it is in native byte order; and what distinguishes it
    from the usual one of that name. `char`: its own, because types with different ones may be equal."""
    name, native = _OF_NUMPY.get(dtype.name), bool(dtype.isnative)
    if name is None or (native and char == _usual_char(numpy, name)):
        return name, native, ""
    return name, native, f"{'=' if native else dtype.byteorder}{char}"


def _write_numpy(numpy: Any, dtype: str, value: Any, out: memoryview) -> None:
    numpy.copyto(_to_numpy(numpy, dtype, value.shape, out), value)


def _of_torch(torch: Any, value: Any) -> Array:
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        if hasattr(value, "to_local"):
            raise TypeError("is a DTensor, of which only one part is here: use perdure.checkpoint.adapters.dcp")
        raise TypeError(
            f"is a {type(value).__qualname__}, a subclass of a tensor that may store its elements anywhere; convert it "
            "to a plain tensor first"
        )
    if value.is_nested:
        raise TypeError("is a nested tensor, which has no plain bytes; save its parts (`unbind`)")
    dtype = _name_of_torch(value.dtype)  # None for a quantized tensor
    if dtype is None or value.layout is not torch.strided:
        raise TypeError(f"is a {value.layout} tensor of {value.dtype}, which has no plain bytes; convert it first")
    is_cpu = value.is_cpu
    if not is_cpu and value.is_meta:
        raise TypeError("is on the meta device and has no content")
    shape, is_conj, is_neg = tuple(value.shape), value.is_conj(), value.is_neg()
    tensor = value.detach().resolve_conj().resolve_neg() if is_conj or is_neg else value
    write = partial(_write_torch, torch, dtype, shape, tensor)
    if not value.numel():
        return Array("torch", dtype, shape, write, (dtype, id(value)))
    location = value.data_ptr()
    # Two views of one memory hold different numbers if only one of them conjugates or negates it.
    source = (dtype, None if is_cpu else value.device, location, shape, value.stride(), is_conj, is_neg)
    if not is_cpu or not tensor.is_contiguous():
        return Array("torch", dtype, shape, write, source)
    return Array("torch", dtype, shape, write, source, location if tensor is value else tensor.data_ptr())


def _write_torch(torch: Any, dtype: str, shape: tuple[int, ...], tensor: Any, out: memoryview) -> None:
    if len(out):
        _to_torch(torch, dtype, shape, out).copy_(tensor.detach(), non_blocking=True)


@lru_cache(maxsize=64)
def _name_of_torch(dtype: Any) -> str | None:
    return _OF_TORCH.get(str(dtype).rpartition(".")[2])


def _to_torch(torch: Any, dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    element = getattr(torch, _TYPES[dtype][2] or "")
    if not len(data):
        return torch.empty(shape, dtype=element)
    return torch.frombuffer(data, dtype=element).reshape(shape)


def _to_numpy(numpy: Any, dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    return numpy.frombuffer(data, dtype=_numpy_element(numpy, dtype)).reshape(shape)


def _numpy_element(numpy: Any, dtype: str) -> Any:
    name = str(_TYPES[dtype][1])
    return numpy.dtype(name) if hasattr(numpy, name) else numpy.dtype(getattr(require_module("ml_dtypes"), name))


@lru_cache(maxsize=64)
def _usual_char(numpy: Any, dtype: str) -> str:
    return str(_numpy_element(numpy, dtype).char)


def require_module(module: str) -> Any:
    """The framework's module, imported. Raises CheckpointError when it cannot be."""
    from perdure.checkpoint.errors import CheckpointError

    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise CheckpointError(f"the checkpoint holds arrays of {package}, which cannot be imported: {error}") from error
