"""The rule that selects the checkpoints to keep. Pure: it removes nothing.

`surplus_removal` decides which of the others are safe to delete (whole and durable ones only), and deletes them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Keep:
    """A checkpoint stays if any of these criteria selects it. Only whole and durable checkpoints count.

    Raises ValueError for a rule that would keep none.
    """

    last: int = 1  # the newest N
    every_steps: int | None = None  # steps that are a multiple of this
    every_minutes: float | None = None  # the first of each span of this length, by the time of the save
    best: int = 0  # the best N by `metric`
    metric: str | None = None  # a name passed to `save(…, metrics={…})`
    mode: str = "min"  # "min": the lowest is best; "max": the highest

    def __post_init__(self) -> None:
        if isinstance(self.last, bool) or not isinstance(self.last, int) or self.last < 1:
            raise ValueError(f"last must be at least 1, not {self.last}: the newest checkpoint always stays")
        if self.every_steps is not None and not (isinstance(self.every_steps, int) and self.every_steps >= 1):
            raise ValueError(f"every_steps must be at least 1, not {self.every_steps}")
        if self.every_minutes is not None and not self.every_minutes > 0:
            raise ValueError(f"every_minutes must be more than 0, not {self.every_minutes}")
        if self.best < 0 or (self.best and not self.metric):
            raise ValueError(f"best={self.best} needs the name of the metric: Keep(best=2, metric='loss')")
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {self.mode!r}")

    @property
    def keeps_older(self) -> bool:
        """Whether any criterion besides `last` selects checkpoints."""
        return self.every_steps is not None or self.every_minutes is not None or self.best > 0


def as_rule(keep: Any, name: str = "keep") -> Keep | None:
    """The argument `name`, which is a rule, a whole number of any library, or None. Raises ValueError."""
    if keep is None or isinstance(keep, Keep):
        return keep
    try:
        last = None if isinstance(keep, bool) else operator.index(keep)
    except TypeError:
        last = None
    if last is None or last < 1:
        raise ValueError(f"{name} must be at least 1, a whole number, or None to keep all, not {keep!r}")
    return Keep(last)


def as_numbers(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """The argument `metrics` of a save, whose values may be numbers of any library, as one-element tensors are.

    Raises TypeError for anything else.
    """
    numbers = {}
    for name, value in (metrics or {}).items():
        try:
            numbers[str(name)] = value if type(value) in (int, float) else float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"the metric {name!r} must be a number, not {value!r:.80}") from None
    return numbers


@dataclass(frozen=True)
class RetentionCandidate:
    """What the rule needs to know of a checkpoint."""

    step: int
    created_at: float  # epoch seconds
    metrics: Mapping[str, Any]


def steps_to_keep(keep: Keep, candidates: Sequence[RetentionCandidate]) -> set[int]:
    """The steps of `candidates` (whole and durable ones, newest first) that stay."""
    kept = {one.step for one in candidates[: keep.last]}
    if keep.every_steps is not None:
        kept |= {one.step for one in candidates if one.step % keep.every_steps == 0}
    if keep.every_minutes is not None:
        spans = {int(one.created_at // (60 * keep.every_minutes)): one.step for one in candidates}
        kept |= set(spans.values())  # the oldest comes last, so the first of each span wins
    if keep.best and keep.metric is not None:
        measured = [one for one in candidates if is_number(one.metrics.get(keep.metric))]
        sign = 1 if keep.mode == "min" else -1
        measured.sort(key=lambda one: (sign * float(one.metrics[str(keep.metric)]), -one.step))
        kept |= {one.step for one in measured[: keep.best]}
    return kept


def is_number(value: Any) -> bool:
    """Whether it is a number that can be compared: not a bool, not NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def epoch_s(created_at: str) -> float:
    """The time of a manifest (ISO 8601, UTC) in epoch seconds; 0 for one that cannot be parsed."""
    try:
        return datetime.fromisoformat(created_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
