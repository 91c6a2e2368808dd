"""`perdure simulate`, as a user types it. It needs no controller."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from perdure.cli.main import cli


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "us-east-1a.json"
    info = {"on_demand_price": 3.0}
    data = [0, 0, 0, 1, 1, 0, 0, 1, 0, 0] * 40
    metadata = {"gap_seconds": 600, "price_info": info}
    path.write_text(json.dumps({"metadata": metadata, "data": data, "prices": [1.0] * len(data)}))
    return path


def simulate(*words):
    return CliRunner().invoke(cli, ["simulate", *map(str, words)], prog_name="perdure")


@pytest.fixture
def asked(trace):
    return ["--trace", trace, "--unavailable-is", 1, "--policy", "CHEAPEST", "--work", "5h", "--deadline", "8h"]


def test_a_table_with_the_baselines_and_the_optimum(asked) -> None:
    found = simulate(*asked, "--starts", 4, "-j", 1)
    assert found.exit_code == 0, found.output
    first = [line.split()[0] for line in found.stdout.splitlines()]
    assert first == ["POLICY", "on-demand", "greedy", "uniform-progress", "CHEAPEST", "optimum"]
    assert "Means over 4 windows of 1 zone." in found.stderr
    dear = found.stdout.splitlines()[1].split()
    assert dear[1] == f"${3.0 * (5 + 0.2):.2f}"


def test_json_and_csv_hold_the_same_windows(asked) -> None:
    document = json.loads(simulate(*asked, "--starts", 3, "-o", "json").stdout)
    rows = list(csv.DictReader(io.StringIO(simulate(*asked, "--starts", 3, "-o", "csv").stdout)))
    assert document["scenario"]["deadline_s"] == 8 * 3600
    assert len(rows) == len(document["windows"]) == 3 * 4
    assert [float(r["cost_usd"]) for r in rows] == [w["cost_usd"] for w in document["windows"]]


def test_windows_by_their_distance(asked) -> None:
    document = json.loads(simulate(*asked, "--window", "10h", "-o", "json", "--no-optimum").stdout)
    starts = sorted({w["start_at"] for w in document["windows"]})
    assert len(starts) == (400 * 600 // 3600 - 8) // 10 + 1


def test_parts_of_a_trace(asked) -> None:
    halves = [
        json.loads(simulate(*asked, "--part", part, "-o", "json", "--starts", 4).stdout) for part in ("0:0.5", "0.5:1")
    ]
    starts = [{w["start_at"] for w in half["windows"]} for half in halves]
    assert max(starts[0]) < min(starts[1])


def test_a_picture(asked, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("perdure.recovery.simulate.plot.SLACKS", (1.5,))
    found = simulate(*asked, "--starts", 3, "--plot", tmp_path / "it.png")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--trace", "{trace}", "--policy", "CHEAPEST", "--work", "5h"], "give --unavailable-is 1 if a 1 says so"),
        (["--unavailable-is", "1", "--policy", "CHEAPEST", "--work", "5h"], "no trace was named"),
        (["--trace", "{trace}", "--unavailable-is", "1", "--work", "5h"], "no policy was named"),
        (["{asked}", "--policy", "CHEEPEST"], "no recovery strategy is called 'CHEEPEST'"),
        (["{asked}", "--deadline", "5h"], "even without an interruption the job takes 5.2 h"),
        (["{asked}", "--deadline", "90h"], "traces cover 67 h together, and a window takes 90 h"),
        (["{asked}", "--work", "5"], "'5' is no duration"),
        (["{asked}", "--starts", "3", "--window", "3h"], "--starts and --window were both given"),
        (["{asked}", "--part", "0.5"], "--part 0.5 is no part"),
        (["{asked}", "--nodes", "2"], "no zone of the traces ever has room for more than 1"),
        (["{asked}", "--nodes", "2", "--quota", "1"], "--quota 1 lets no region have 2 nodes"),
        (["{asked}", "--warm-up", "1h"], "add --probe-every"),
        (["{asked}", "--plot", "it.bmp"], "unknown kind of picture"),
        (["{asked}", "--plot", "/nowhere/it.png"], "there is no folder /nowhere"),
        (["--trace", "{trace}", "--unavailable-is", "1", "--policy", "deadline", "--work", "5h"], "but no deadline"),
        (["{asked}", "--trace", "/nowhere"], "/nowhere can not be read"),
        (["{asked}", "--work", "5h1s"], "is no duration"),
    ],
)
def test_what_is_wrong_is_said(trace, asked, words, complaint) -> None:
    given = [w for word in words for w in (asked if word == "{asked}" else [trace if word == "{trace}" else word])]
    found = simulate(*given)
    assert found.exit_code == 2
    assert complaint in " ".join(found.output.split())
    assert "Traceback" not in found.output


def test_what_a_part_is_worth(asked) -> None:
    found = simulate(*asked, "--policy", "DEADLINE", "--without", "returns", "--starts", 2, "-j", 1, "-o", "json")
    names = [summary["policy"] for summary in json.loads(found.stdout)["policies"]]
    assert names[-4:] == ["CHEAPEST", "DEADLINE", "CHEAPEST without returns", "DEADLINE without returns"]
    wrong = simulate(*asked, "--without", "wheels")
    assert wrong.exit_code == 2
    assert "no part called 'wheels'; choose one of reserve" in wrong.stderr
