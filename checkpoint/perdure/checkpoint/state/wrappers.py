"""The wrappers that PyTorch puts around a model. The state of the model itself is saved, so that a run can be resumed
with another wrapper or none: on one GPU after training on eight, or without `torch.compile` after training with it."""

from __future__ import annotations

from typing import Any

# Class (by name, since PyTorch is not imported here) → the attribute that holds the wrapped object. FSDP is not among
# them: the module that it wraps has no complete state.
_WRAPPED_ATTRIBUTES = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
}


def unwrap(value: Any) -> Any:
    """`value` without its wrappers, of which there may be several; anything else unchanged."""
    while (attribute := _attribute(value)) is not None:
        value = getattr(value, attribute)
    return value


def _attribute(value: Any) -> str | None:
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__)
    return next((_WRAPPED_ATTRIBUTES[kind] for kind in kinds if kind in _WRAPPED_ATTRIBUTES), None)
