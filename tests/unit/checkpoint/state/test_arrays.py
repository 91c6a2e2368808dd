"""JAX arrays of 64 bits, which a program that is not configured for them must not load as 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.state.arrays import SavedArray, restore_array

jax = pytest.importorskip("jax")


def test_jax_arrays__of_64_bits_are_not_loaded_as_32_bits() -> None:
    data = memoryview(bytearray(np.array([1 + 2**-40])))
    with pytest.raises(CheckpointError, match=r"holds JAX arrays of float64, .* set jax_enable_x64"):
        restore_array(SavedArray(0, "jax", "F64", (1,), 0), data)
    assert restore_array(SavedArray(0, "jax", "F32", (2,), 0), data).dtype == np.float32
