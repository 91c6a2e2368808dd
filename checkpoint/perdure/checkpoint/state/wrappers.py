"""What PyTorch puts around a model. The state that is saved is the model's own, so that a run may be resumed with
another wrapper or none: on one GPU what was trained on eight, without `torch.compile` what was trained with it."""

from __future__ import annotations

from typing import Any

# Class (by name: PyTorch is not imported for this) → the attribute that holds what it wraps. FSDP is not among them:
# the module within has no whole state.
_WITHIN = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
}


def unwrapped(value: Any) -> Any:
    """`value` without the wrappers around it, of which there may be several; anything else as it is."""
    while (attribute := _attribute(value)) is not None:
        value = getattr(value, attribute)
    return value


def _attribute(value: Any) -> str | None:
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__)
    return next((_WITHIN[kind] for kind in kinds if kind in _WITHIN), None)
