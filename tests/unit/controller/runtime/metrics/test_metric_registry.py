from __future__ import annotations

import threading

import pytest

from perdure.controller.runtime.metrics.metric_registry import MetricRegistry


def lines_of(registry: MetricRegistry, *, openmetrics: bool = False) -> list[str]:
    return registry.render(openmetrics=openmetrics).splitlines()


def test_counter__is_named_for_each_format() -> None:
    registry = MetricRegistry()
    registry.counter("perdure_things", "Things.", "kind").inc("a", by=2)
    assert lines_of(registry) == [
        "# HELP perdure_things_total Things.",
        "# TYPE perdure_things_total counter",
        'perdure_things_total{kind="a"} 2',
    ]
    assert lines_of(registry, openmetrics=True) == [
        "# HELP perdure_things Things.",
        "# TYPE perdure_things counter",
        'perdure_things_total{kind="a"} 2',
        "# EOF",
    ]


def test_counter__without_labels_is_there_from_the_start() -> None:
    registry = MetricRegistry()
    registry.counter("perdure_things", "Things.")
    assert "perdure_things_total 0" in lines_of(registry)


def test_histogram__counts_cumulatively_and_includes_the_bound() -> None:
    registry = MetricRegistry()
    histogram = registry.histogram("perdure_seconds", "Seconds.", (1, 2.5), "cloud")
    for value in (1, 2, 7, float("nan")):
        histogram.observe(value, "aws")
    assert lines_of(registry)[2:] == [
        'perdure_seconds_bucket{cloud="aws",le="1.0"} 1',
        'perdure_seconds_bucket{cloud="aws",le="2.5"} 2',
        'perdure_seconds_bucket{cloud="aws",le="+Inf"} 3',
        'perdure_seconds_count{cloud="aws"} 3',
        'perdure_seconds_sum{cloud="aws"} 10.0',
    ]


def test_gauge__forgets_label_sets_that_are_zero() -> None:
    registry = MetricRegistry()
    gauge = registry.gauge("perdure_tasks", "Tasks.", "status")
    gauge.add(1, "RUNNING")
    gauge.add(1, "PENDING")
    gauge.add(-1, "RUNNING")
    assert lines_of(registry)[2:] == ['perdure_tasks{status="PENDING"} 1']


def test_labels__are_escaped_and_cut() -> None:
    registry = MetricRegistry()
    registry.counter("perdure_things", "Things.", "kind").inc('a"b\\c\nd' + "x" * 1000)
    (line,) = lines_of(registry)[2:]
    assert line.startswith('perdure_things_total{kind="a\\"b\\\\c dxxx')
    assert len(line) < 150


def test_label_sets__beyond_the_limit_are_counted_together() -> None:
    registry = MetricRegistry()
    counter = registry.counter("perdure_things", "Things.", "zone", max_series=2)
    for zone in ("a", "b", "c", "d", "a"):
        counter.inc(zone)
    assert lines_of(registry)[2:] == [
        'perdure_things_total{zone="a"} 2',
        'perdure_things_total{zone="b"} 1',
        'perdure_things_total{zone="other"} 2',
    ]
    assert registry.dropped == 2


def test_gauge__beyond_the_limit_adds_up() -> None:
    registry = MetricRegistry()
    gauge = registry.gauge("perdure_things", "Things.", "zone", max_series=2)
    gauge.replace({("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4})
    assert lines_of(registry)[-1] == 'perdure_things{zone="other"} 7'


def test_gauge__subtracts_where_it_has_added() -> None:
    registry = MetricRegistry()
    gauge = registry.gauge("perdure_things", "Things.", "zone", max_series=2)
    for zone in ("a", "b", "c"):
        gauge.add(1, zone)
    gauge.add(-1, "a")
    gauge.add(-1, "c")
    assert lines_of(registry)[2:] == ['perdure_things{zone="b"} 1']


def test_wrong_number_of_labels__is_an_error() -> None:
    counter = MetricRegistry().counter("perdure_things", "Things.", "zone")
    with pytest.raises(ValueError, match="perdure_things has the labels"):
        counter.inc("a", "b")


def test_counter__loses_nothing_between_threads() -> None:
    registry = MetricRegistry()
    counter = registry.counter("perdure_things", "Things.", "kind")
    threads = [threading.Thread(target=lambda: [counter.inc("a") for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines_of(registry)[2:] == ['perdure_things_total{kind="a"} 8000']
