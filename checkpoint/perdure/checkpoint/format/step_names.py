"""Whether a file is named after the step that it belongs to.

`model_70.pt` and `step_000070/shard_1.bin` are named after step 70; `latest.pt` and `metrics.jsonl` after none. A file
named after its step belongs to that step alone: it never changes again, and is removed with its checkpoint. Any other
file may be shared by checkpoints, so this library never deletes it.
"""

from __future__ import annotations

import re
from functools import lru_cache


def is_named_after(path: str, step: int) -> bool:
    """Whether the relative path contains `step` as a number, with or without leading zeros."""
    return _number(step).search(path) is not None


def template(path: str, step: int) -> str:
    """The path with `{step}` in place of the step: equal for the same file of two checkpoints."""
    return _number(step).sub("{step}", path)


@lru_cache(maxsize=64)
def _number(step: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\d)0*{step}(?!\d)")
