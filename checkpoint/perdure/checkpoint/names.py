"""Whether a file's name says which step it belongs to.

`model_70.pt` and `step_000070/shard_1.bin` are named after step 70; `latest.pt` and `metrics.jsonl` after none. A file
named after its step is that step's alone: it never changes again, and goes when its checkpoint goes. Any other file may
be shared by checkpoints, so nothing here ever deletes it.
"""

from __future__ import annotations

import re
from functools import lru_cache


def is_named_after(path: str, step: int) -> bool:
    """Whether `step` stands in the relative path as a number of its own, leading zeros allowed."""
    return _number(step).search(path) is not None


def template(path: str, step: int) -> str:
    """The path with `{step}` for the step: equal for the same file of two checkpoints."""
    return _number(step).sub("{step}", path)


@lru_cache(maxsize=64)
def _number(step: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\d)0*{step}(?!\d)")
