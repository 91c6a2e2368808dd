"""`perdure simulate`, as a user runs it. It needs no controller."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "us-east-1a.json"
    info = {"on_demand_price": 3.0}
    data = [0, 0, 0, 1, 1, 0, 0, 1, 0, 0] * 40
    metadata = {"gap_seconds": 600, "price_info": info}
    path.write_text(json.dumps({"metadata": metadata, "data": data, "prices": [1.0] * len(data)}))
    return path


def simulate(*words: object) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, words)], prog_name="perdure")


@pytest.fixture
def options(trace: Path) -> list[object]:
    return ["--trace", trace, "--unavailable-is", 1, "--policy", "CHEAPEST", "--work", "5h", "--deadline", "8h"]


def test_simulate__prints_table_with_baselines_and_optimum(options: list[object]) -> None:
    result = simulate(*options, "--windows", 4, "-j", 1)
    assert result.exit_code == 0, result.output
    first = [line.split()[0] for line in result.stdout.splitlines()]
    assert first == ["POLICY", "on-demand", "greedy", "uniform-progress", "CHEAPEST", "optimum"]
    assert "Means over 4 windows of 1 zone." in result.stderr
    on_demand = result.stdout.splitlines()[1].split()
    assert on_demand[1] == f"${3.0 * (5 + 0.2):.2f}"


def test_simulate__json_and_csv_have_same_windows(options: list[object]) -> None:
    document = json.loads(simulate(*options, "--windows", 3, "-o", "json").stdout)
    rows = list(csv.DictReader(io.StringIO(simulate(*options, "--windows", 3, "-o", "csv").stdout)))
    assert document["scenario"]["deadline_s"] == 8 * 3600
    assert len(rows) == len(document["windows"]) == 3 * 4
    assert [float(r["cost_usd"]) for r in rows] == [w["cost_usd"] for w in document["windows"]]


def test_simulate__runs_on_a_synthetic_market() -> None:
    job = ["--policy", "DEADLINE", "--work", "6h", "--deadline", "9h", "--windows", 3, "-j", 1, "-o", "json"]
    result = simulate("--market", "synthetic:gangs,zones=3,days=5,seed=2", "--nodes", 4, *job)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["scenario"]["zones"] == ["syn-1a", "syn-2a", "syn-3a"]
    assert document["scenario"]["num_nodes"] == 4
    wrong = simulate("--market", "synthetic:calm", *job)
    assert (wrong.exit_code, "write synthetic:KIND" in wrong.stderr) == (2, True)


def test_simulate__task_may_state_the_wrong_work(options: list[object]) -> None:
    job = [*options[:-6], "--policy", "DEADLINE", "--work", "5h", "--deadline", "8h", "--windows", 3, "-o", "json"]
    document = json.loads(simulate(*job, "--stated-work", "4h", "--steps", 1000, "--checkpoint-every", "10m").stdout)
    assert (document["scenario"]["stated_work_s"], document["scenario"]["steps"]) == (4 * 3600, 1000)
    assert not any(window["late"] for window in document["windows"])


def test_simulate__window_every_spaces_windows(options: list[object]) -> None:
    document = json.loads(simulate(*options, "--window-every", "10h", "-o", "json", "--no-optimum").stdout)
    starts = sorted({w["start_at"] for w in document["windows"]})
    assert len(starts) == (400 * 600 // 3600 - 8) // 10 + 1


def test_simulate__slice_uses_part_of_traces(options: list[object]) -> None:
    halves = [
        json.loads(simulate(*options, "--slice", part, "-o", "json", "--windows", 4).stdout)
        for part in ("0:0.5", "0.5:1")
    ]
    starts = [{w["start_at"] for w in half["windows"]} for half in halves]
    assert max(starts[0]) < min(starts[1])


def test_simulate__writes_plot(options: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.recovery.simulate.results.plot.SLACKS", (1.5,))
    result = simulate(*options, "--windows", 3, "--plot", tmp_path / "it.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--market", "synthetic:steady", "--trace", "{trace}", "--policy", "CHEAPEST", "--work", "5h"],
            "exclude each",
        ),
        (["--trace", "{trace}", "--policy", "CHEAPEST", "--work", "5h"], "add --unavailable-is 1 if it is 1"),
        (["--unavailable-is", "1", "--policy", "CHEAPEST", "--work", "5h"], "no trace to replay"),
        (["--trace", "{trace}", "--unavailable-is", "1", "--work", "5h"], "no policy to simulate"),
        (["{options}", "--policy", "CHEEPEST"], "no recovery strategy is called 'CHEEPEST'"),
        (["{options}", "--deadline", "5h"], "even without an interruption the job takes 5.2 h"),
        (["{options}", "--deadline", "90h"], "traces cover 67 h together, and a window takes 90 h"),
        (["{options}", "--work", "5"], "'5' is not a duration"),
        (["{options}", "--windows", "3", "--window-every", "3h"], "--windows and --window-every exclude each other"),
        (["{options}", "--slice", "0.5"], "--slice 0.5 is not a part"),
        (["{options}", "--nodes", "2"], "no zone of the traces ever has capacity for more than 1"),
        (["{options}", "--nodes", "2", "--quota", "1"], "--quota 1 is less than --nodes 2"),
        (["{options}", "--warm-up", "1h"], "add --probe-every"),
        (["{options}", "--plot", "it.bmp"], "unknown file type"),
        (["{options}", "--plot", "/nowhere/it.png"], "the folder /nowhere does not exist"),
        (
            ["--trace", "{trace}", "--unavailable-is", "1", "--policy", "deadline", "--work", "5h"],
            "DEADLINE needs a deadline",
        ),
        (["{options}", "--trace", "/nowhere"], "/nowhere cannot be read"),
        (["{options}", "--work", "5h1s"], "is not a duration"),
    ],
)
def test_simulate__explains_wrong_options(trace: Path, options: list[object], words: list[str], message: str) -> None:
    given = [w for word in words for w in (options if word == "{options}" else [trace if word == "{trace}" else word])]
    result = simulate(*given)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_simulate__ablate_runs_policies_without_part(options: list[object]) -> None:
    result = simulate(*options, "--policy", "DEADLINE", "--ablate", "returns", "--windows", 2, "-j", 1, "-o", "json")
    names = [summary["policy"] for summary in json.loads(result.stdout)["policies"]]
    assert names[-4:] == ["CHEAPEST", "DEADLINE", "CHEAPEST without returns", "DEADLINE without returns"]
    wrong = simulate(*options, "--ablate", "wheels")
    assert wrong.exit_code == 2
    assert "no part called 'wheels'; choose one of reserve" in wrong.stderr


def test_simulate__warns_of_on_time_without_deadline(options: list[object]) -> None:
    assert "--on-time has no effect" in simulate(*options, "--on-time", "0.9").stderr
    assert "--on-time" not in simulate(*options).output


def test_simulate__of_a_missing_trace_names_it_first() -> None:
    result = simulate("--trace", "/nowhere", "--policy", "CHEAPEST", "--work", "48h")
    assert result.exit_code == 2
    assert "/nowhere cannot be read: it does not exist" in result.output
