"""How long an available offer will stay available: a Weibull law with a falling hazard, scaled by the offer's record.

An offer that has lasted long is likely to last longer. Shape and scale are the prior. The hazard of an offer that loses
machines `volatility` times as often as the prior predicts is multiplied by that.
"""

from __future__ import annotations

from bisect import bisect_right
from math import exp, log

# Fitted to lifetimes in the first half of the recorded V100 zones; those of H100s have tails as heavy.
SHAPE = 0.45
SCALE_S = 2900.0

_GRID = 72
_STEPS = 400


def cumulative_hazard(age_s: float) -> float:
    """Losses that the prior expects of an offer from its first moment to `age_s`, if each were repaired at once."""
    return float((max(0.0, age_s) / SCALE_S) ** SHAPE)


def survival(age_s: float, more_s: float, volatility: float = 1.0) -> float:
    """The probability that an offer of age `age_s` lasts for `more_s` longer."""
    return exp(-volatility * (cumulative_hazard(age_s + more_s) - cumulative_hazard(age_s)))


def remaining_life_s(age_s: float, volatility: float = 1.0) -> float:
    """The mean remaining lifetime of an offer of age `age_s`."""
    scale_s = float(SCALE_S * volatility ** (-1 / SHAPE))
    return scale_s * _mean_residual(max(0.0, age_s) / scale_s)


def _mean_residual(age: float) -> float:
    """Mean residual life of a Weibull law of scale 1, from a table, interpolated linearly in the logarithm of age."""
    if age <= _AGES[0]:
        return _RESIDUALS[0]
    if age >= _AGES[-1]:
        return float(_RESIDUALS[-1] * (age / _AGES[-1]) ** (1 - SHAPE))
    i = bisect_right(_AGES, age)
    share = log(age / _AGES[i - 1]) / log(_AGES[i] / _AGES[i - 1])
    return _RESIDUALS[i - 1] + share * (_RESIDUALS[i] - _RESIDUALS[i - 1])


def _integrate_residual(age: float) -> float:
    """The survival function from `age` on, integrated over the hazard y: x = (age^shape + y)^(1/shape) - age."""
    begun, width = age**SHAPE, 40.0 / _STEPS
    total = 0.0
    for i in range(_STEPS):
        y = (i + 0.5) * width
        total += exp(-y) * (begun + y) ** (1 / SHAPE - 1) / SHAPE * width
    return total


_AGES = tuple(10 ** (-6 + 10 * i / (_GRID - 1)) for i in range(_GRID))
_RESIDUALS = tuple(_integrate_residual(age) for age in _AGES)
