"""Which checkpoints to keep: a rule, and its answer for a list of them. Pure; `retention` acts upon it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Keep:
    """A checkpoint stays when any of these asks for it.

    `last`: the newest so many. `every_steps`: those whose step is a multiple. `every_minutes`: the first of each span
    of so many minutes, by the time of the save. `best`: so many by `metric` (as given to `save`), the lowest first
    unless `mode` is "max". Only checkpoints that are whole and durable count; raises ValueError for a rule that would
    keep none.
    """

    last: int = 1
    every_steps: int | None = None
    every_minutes: float | None = None
    best: int = 0
    metric: str | None = None
    mode: str = "min"

    def __post_init__(self) -> None:
        if isinstance(self.last, bool) or self.last < 1:
            raise ValueError(f"last must be at least 1, not {self.last}: the newest checkpoint always stays")
        if self.every_steps is not None and self.every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, not {self.every_steps}")
        if self.every_minutes is not None and not self.every_minutes > 0:
            raise ValueError(f"every_minutes must be more than 0, not {self.every_minutes}")
        if self.best < 0 or (self.best and not self.metric):
            raise ValueError(f"best={self.best} needs the name of the metric: Keep(best=2, metric='loss')")
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {self.mode!r}")

    @property
    def keeps_older(self) -> bool:
        """Whether anything besides `last` asks for checkpoints."""
        return self.every_steps is not None or self.every_minutes is not None or self.best > 0


@dataclass(frozen=True)
class Kept:
    """What the rule needs to know of a checkpoint. `created_at` in epoch seconds."""

    step: int
    created_at: float
    metrics: Mapping[str, Any]


def kept_steps(keep: Keep, found: Sequence[Kept]) -> set[int]:
    """The steps of `found` (whole and durable ones, newest first) that stay."""
    stay = {one.step for one in found[: keep.last]}
    if keep.every_steps is not None:
        stay |= {one.step for one in found if one.step % keep.every_steps == 0}
    if keep.every_minutes is not None:
        spans = {int(one.created_at // (60 * keep.every_minutes)): one.step for one in found}
        stay |= set(spans.values())  # oldest last in `found`: the first of each span wins
    if keep.best and keep.metric is not None:
        told = [one for one in found if _is_number(one.metrics.get(keep.metric))]
        sign = 1 if keep.mode == "min" else -1
        told.sort(key=lambda one: (sign * float(one.metrics[str(keep.metric)]), -one.step))
        stay |= {one.step for one in told[: keep.best]}
    return stay


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def epoch_s(created_at: str) -> float:
    """The time of a manifest (ISO 8601, UTC) in epoch seconds; 0 for one that can not be read."""
    try:
        return datetime.fromisoformat(created_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
