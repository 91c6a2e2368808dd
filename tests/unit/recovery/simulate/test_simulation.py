"""Many windows: the same result in any number of processes, and correct summaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.recovery.policies.registry import UnknownStrategy
from perdure.recovery.simulate import BadTrace, Scenario, simulate
from perdure.recovery.simulate.results.plot import draw
from perdure.recovery.simulate.results.report import document, windows
from perdure.recovery.simulate.statistics import bootstrap, summarize
from unit.recovery.simulate.markets import MakeZone

PATTERN = "1110001101" * 60


@pytest.fixture
def scenario(zone: MakeZone) -> Scenario:
    zones = zone(PATTERN), zone(PATTERN[4:] + "1111", name="west-1a", price=1.5)
    return Scenario(zones, work_s=6 * 3600, deadline_s=9 * 3600, cold_start_s=600)


def test_simulate__result_is_independent_of_processes(scenario: Scenario) -> None:
    scenario = replace(scenario, cold_start_sigma=0.5, checkpoint_every_s=1800)
    counted: list[int] = []
    alone = simulate(scenario, ["CHEAPEST"], windows=8)
    together = simulate(scenario, ["CHEAPEST"], windows=8, processes=2, on_progress=counted.append)
    assert alone == together
    assert sum(counted) == 8


def test_simulate__runs_all_policies_in_same_windows(scenario: Scenario) -> None:
    simulation = simulate(scenario, ["CHEAPEST", "FAILOVER"], windows=5)
    assert list(simulation.runs) == ["on-demand", "greedy", "uniform-progress", "CHEAPEST", "FAILOVER"]
    for runs in simulation.runs.values():
        assert [r.start_at for r in runs] == [w.start_at for w in simulation.windows]
    ends = [w.start_at + scenario.deadline_s for w in simulation.windows]
    assert len(ends) == 5
    assert max(ends) <= scenario.span[1]


def test_simulate__several_scenarios(scenario: Scenario) -> None:
    apart = [replace(scenario, zones=(zone,)) for zone in scenario.zones]
    simulation = simulate(apart, ["CHEAPEST"], windows=3)
    assert [w.scenario for w in simulation.windows] == [0, 0, 0, 1, 1, 1]
    assert simulation.scenario(5).zones == scenario.zones[1:]


def test_simulate__without_deadline_compares_at_finish_time(scenario: Scenario) -> None:
    simulation = simulate(replace(scenario, deadline_s=None, use_on_demand=False), ["EAGER_NEXT_REGION"], windows=4)
    assert "lifetime-oracle" in simulation.runs
    runs, least = simulation.runs["EAGER_NEXT_REGION"], simulation.optimum_costs["EAGER_NEXT_REGION"]
    assert all(run.cost >= cost - 1e-9 for run, cost in zip(runs, least, strict=True))
    assert all(r.finish_s >= s for r, s in zip(runs, simulation.fastest_s, strict=True))


def test_summarize__averages_windows(scenario: Scenario) -> None:
    simulation = simulate(scenario, ["CHEAPEST"], windows=6)
    by_name = {s.policy: s for s in summarize(simulation)}
    dear, own = by_name["on-demand"], by_name["CHEAPEST"]
    assert dear.cost == pytest.approx(3.0 * (6 * 3600 + 600) / 3600)
    assert (dear.saving, dear.late) == (0, 0)
    costs = [r.cost for r in simulation.runs["CHEAPEST"]]
    assert own.cost == pytest.approx(sum(costs) / 6)
    assert own.saving == pytest.approx(1 - own.cost / dear.cost)
    ratio = own.above_optimum
    assert ratio.value == pytest.approx(sum(costs) / sum(simulation.optimum_costs["CHEAPEST"]))
    assert 1 <= ratio.low <= ratio.value <= ratio.high


def test_bootstrap__interval_of_a_mean() -> None:
    """400 independent values of standard deviation 1/2: the mean lies within 1.96 * 0.025 of theirs."""
    values = [0.0, 1.0] * 200
    simulation = bootstrap([(value, 1) for value in values], seed=1)
    assert simulation.value == 0.5
    assert simulation.high - simulation.low == pytest.approx(2 * 1.96 * 0.025, rel=0.15)


def test_summarize__overlapping_windows_add_no_evidence() -> None:
    """The same forty values, each repeated ten times in its own block, give no narrower interval."""

    def width(values: list[float], block: int) -> float:
        simulation = bootstrap([(sum(values[i : i + block]), block) for i in range(0, len(values), block)], seed=1)
        return simulation.high - simulation.low

    values = [0.0, 1.0] * 20
    repeated = [value for value in values for _ in range(10)]
    assert width(repeated, 10) == pytest.approx(width(values, 1))
    assert width(repeated, 1) < width(values, 1) / 2


def test_simulate__rejects_bad_input_first(scenario: Scenario) -> None:
    with pytest.raises(UnknownStrategy, match="CHEAPER"):
        simulate(scenario, ["CHEAPER"])
    with pytest.raises(BadTrace, match="cover 100 h together, and a window takes 200 h"):
        simulate(replace(scenario, deadline_s=200 * 3600), ["CHEAPEST"])


def test_report__is_plain_data(scenario: Scenario) -> None:
    simulation = simulate(scenario, ["CHEAPEST"], windows=3)
    written = json.loads(json.dumps(document(simulation, summarize(simulation)), allow_nan=False))
    assert [p["policy"] for p in written["policies"]] == list(simulation.runs)
    assert len(list(windows(simulation))) == 3 * 4
    blind = simulate(scenario, ["CHEAPEST"], windows=3, with_optimum=False)
    assert json.dumps(document(blind, summarize(blind)), allow_nan=False)


@pytest.mark.parametrize(
    ("ending", "begin", "deadline_s"),
    [("png", b"\x89PNG", 9 * 3600), ("html", b"<!doctype html>", None), ("svg", b"<?xml", None)],
)
def test_draw__writes_each_format(
    scenario: Scenario, tmp_path: Path, ending: str, begin: bytes, deadline_s: int | None
) -> None:
    pytest.importorskip("matplotlib")
    simulation = simulate(replace(scenario, deadline_s=deadline_s), ["CHEAPEST"], windows=3)
    path = tmp_path / f"picture.{ending}"
    draw(simulation, ["CHEAPEST"], path=str(path), max_windows=2)
    data = path.read_bytes()
    assert data.startswith(begin)
    assert len(data) > 10_000
