"""Series of a bounded size: what they keep, how they widen, how they are written."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.store.logs.series.metric_series import (
    FIRST_RESOLUTION_S,
    MACHINE,
    MAX_COLUMNS,
    MAX_POINTS,
    STEP,
    MetricSeries,
    merged,
)


def series_of(*points: tuple[float, dict[str, float]]) -> MetricSeries:
    return merged(None, points)


def test_points__are_kept_as_they_are_while_there_is_room() -> None:
    series = series_of(*((60.0 * n, {"cpu": n / 10, STEP: n}) for n in range(10)))
    assert list(series.at) == [60.0 * n for n in range(10)]
    assert list(series.columns["cpu"]) == pytest.approx([n / 10 for n in range(10)])
    assert list(series.columns[STEP]) == list(range(10))
    assert series.resolution_s == FIRST_RESOLUTION_S


def test_points_of_one_moment__become_their_mean() -> None:
    series = series_of((0.0, {"cpu": 0.1, STEP: 5}), (1.0, {"cpu": 0.2, STEP: 4}), (2.0, {"cpu": 0.6}))
    assert (len(series), series.at[0]) == (1, pytest.approx(1.0))
    assert (series.columns["cpu"][0], series.columns[STEP][0]) == (pytest.approx(0.3), 5)


def test_value_that_comes_late_or_stops__is_missing_elsewhere() -> None:
    series = series_of((0.0, {"cpu": 1.0}), (60.0, {"cpu": 1.0, ".loss": 2.5}), (120.0, {"cpu": 1.0}))
    assert [None if math.isnan(value) else value for value in series.columns[".loss"]] == [None, 2.5, None]


def test_month__fits_into_the_space_of_an_hour() -> None:
    """And its means are right, its whole time is there, and its steps only grow."""
    month, noise = 30 * 24 * 60, random.Random(7)
    values = [noise.random() for _ in range(month)]
    series = series_of(*((60.0 * n, {"gpu": value, STEP: n}) for n, value in enumerate(values)))
    assert MAX_POINTS / 2 < len(series) <= MAX_POINTS
    assert series.at[0] < 2 * series.resolution_s
    assert series.at[-1] > 60.0 * month - 2 * series.resolution_s
    weights = series._weights
    mean = sum(value * weight for value, weight in zip(series.columns["gpu"], weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(sum(values) / month, rel=1e-3)
    assert list(series.columns[STEP]) == sorted(series.columns[STEP])
    assert series.columns[STEP][-1] == month - 1


def test_row__has_a_bounded_size() -> None:
    """With all values of a machine with GPUs and 8 of the program, of random digits, which cannot be compressed."""
    noise = random.Random(3)
    names = [*MACHINE, STEP, *(f".value{n}" for n in range(8))]
    series = series_of(*((60.0 * n, {name: noise.random() for name in names}) for n in range(5000)))
    assert len(series.encode()) < 45_000
    of_machine = series_of(*((60.0 * n, {name: round(noise.random(), 3) for name in MACHINE}) for n in range(5000)))
    assert len(of_machine.encode()) < 16_000


def test_names__are_limited() -> None:
    series = series_of(*((60.0 * n, {f".value{n}": 1.0}) for n in range(100)))
    assert len(series.columns) == MAX_COLUMNS


def test_clock_that_is_set_back__keeps_the_order() -> None:
    series = series_of((1000.0, {"cpu": 0.1}), (10.0, {"cpu": 0.3}), (2000.0, {"cpu": 0.5}))
    assert list(series.at) == [1000.0, 2000.0]


def test_coarsened__leaves_the_series_as_it_is() -> None:
    series = series_of(*((60.0 * n, {"cpu": n % 2, STEP: n}) for n in range(200)))
    coarse = series.coarsened(50)
    assert 20 <= len(coarse) <= 50
    assert list(coarse.columns["cpu"])[1:-1] == pytest.approx([0.5] * (len(coarse) - 2), abs=0.2)
    assert coarse.columns[STEP][-1] == 199
    assert (len(series), series.resolution_s) == (200, FIRST_RESOLUTION_S)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e9),
            st.dictionaries(st.sampled_from([*MACHINE, STEP, ".loss"]), st.floats(-1e30, 1e30), max_size=4),
        ),
        max_size=80,
    )
)
def test_series__survives_being_written(points: list[tuple[float, dict[str, float]]]) -> None:
    series = series_of(*points)
    read = MetricSeries.decode(series.encode())
    assert (read.resolution_s, read.at, read._weights) == (series.resolution_s, series.at, series._weights)
    assert {name: bytes(column) for name, column in read.columns.items()} == {
        name: bytes(column) for name, column in series.columns.items()
    }
    assert list(series.at) == sorted(series.at)


@pytest.mark.parametrize("change", [b"", b"\x02", b"\x01", b"\x01rubbish"])
def test_rubbish__is_no_series(change: bytes) -> None:
    with pytest.raises(ValueError, match="metrics"):
        MetricSeries.decode(change)
    whole = series_of((1.0, {"cpu": 0.5})).encode()
    with pytest.raises(ValueError, match="metrics"):
        MetricSeries.decode(whole[:-5])
