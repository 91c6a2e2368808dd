"""`perdure jobs queue`: the table of jobs at any width, filters, pages and --watch."""

from __future__ import annotations

import json
import re
import signal

import pytest
from click.testing import Result

from perdure.sdk.connection.client import PAGE_SIZE
from support.helpers.timing import scaled
from unit.cli.commands import RunPerdure, StartOnTerminal, StartPerdure
from unit.sdk.contract_server import Controller

TITLES = [
    "ID",
    "TASK",
    "NAME",
    "RESOURCES",
    "SUBMITTED",
    "TOT. DURATION",
    "JOB DURATION",
    "#RECOVERIES",
    "COST (SAVED)",
]


@pytest.fixture
def three_jobs(server: Controller) -> Controller:
    server.add("SUCCEEDED", name="old")
    server.add("SUCCEEDED", "RUNNING", "PENDING", name="nightly-training-of-everything")
    server.add("RECOVERING", name="bert", zone=None, region=None, cloud=None, market=None, cost_usd=0.0)
    return server


def table(result: Result) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()[1:]]


def test_table__shows_all_columns(perdure: RunPerdure, three_jobs: Controller) -> None:
    result = perdure("jobs", "queue", env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "In progress tasks: 1 RUNNING, 1 RECOVERING, 1 PENDING"
    titles, first, pipeline, *tasks, last = table(result)
    assert titles == [*TITLES, "STATUS", "WHERE"]
    assert first[:3] == ["3", "-", "bert"]
    assert first[-3:] == ["-", "RECOVERING", "-"]
    assert pipeline[0] == "2"
    assert pipeline[-5:] == ["21m 36s", "6", "$1.26 (70%)", "RUNNING (task: 1)", "aws/us-east-1a spot"]
    assert [task[:2] for task in tasks] == [["↳", "0"], ["↳", "1"], ["↳", "2"]]
    assert [task[-2] for task in tasks] == ["SUCCEEDED", "RUNNING", "PENDING"]
    assert last[0] == "1"


def test_table__durations_of_a_pipeline_do_not_overlap(perdure: RunPerdure, server: Controller) -> None:
    server.add("SUCCEEDED", "RUNNING", "PENDING", name="p")
    first, _, last = server.jobs[1]
    first |= {"ended_at": "2026-11-21T01:06:03.000004Z", "total_duration_s": 240.0}
    last |= {"started_at": None, "generation": 0}
    titles, *rows = table(perdure("jobs", "queue", env={"COLUMNS": "200"}))
    assert [row[titles.index("TOT. DURATION")] for row in rows] == ["8m 20s", "4m", "4m 20s", "-"]


def test_details__are_added_on_request(perdure: RunPerdure, server: Controller) -> None:
    server.add("FAILED", name="p", reason="RUN_FAILED", message="`run` exited with 3" * 9)
    titles, row = table(perdure("jobs", "queue", "-u", env={"COLUMNS": "80"}))
    assert (titles[-1], row[-1]) == ("USER", "ada")
    titles, row = table(perdure("jobs", "queue", "-v", env={"COLUMNS": "80"}))
    assert titles[-4:] == ["USER", "PRIORITY", "MACHINES", "REASON"]
    assert row[-4:] == ["ada", "0", "1x p3.2xlarge", f"RUN_FAILED: {'`run` exited with 3' * 9}"]


def test_filters__by_time_and_place(perdure: RunPerdure, server: Controller) -> None:
    server.add("SUCCEEDED", submitted_at="2026-11-19T01:00:00.000000Z")
    server.add("SUCCEEDED", zone="us-west-2a", region="us-west-2")
    server.add("SUCCEEDED", "RUNNING")
    server.jobs[3][1] |= {"cloud": "gcp", "region": "us-central1", "zone": "us-central1-a"}

    def ids(*words: str) -> list[int]:
        jobs = json.loads(perdure("jobs", "queue", "-o", "json", *words).stdout)
        return list(dict.fromkeys(job["job_id"] for job in jobs))

    assert ids("--since", "2d") == ids("--since", "2026-11-20") == [3, 2]
    assert ids("--since", "2d", "-l", "1") == [3]
    assert ids("--since", "1m") == []
    assert ids("--infra", "aws") == [3, 2, 1]
    assert ids("--infra", "aws/us-west-2") == [2]
    assert ids("--infra", "*/*/us-central1-a") == [3], "a task of a pipeline is there"
    assert perdure("jobs", "queue", "--infra", "azure").stdout == "There is no such job.\n"
    assert "--since: found 'soon'" in perdure("jobs", "queue", "--since", "soon").stderr
    assert "--infra: unknown cloud 'awz'" in perdure("jobs", "queue", "--infra", "awz").stderr


def test_since__reads_no_page_after_an_older_job(perdure: RunPerdure, server: Controller) -> None:
    for _ in range(2 * PAGE_SIZE):
        server.add("SUCCEEDED", submitted_at="2026-11-19T01:00:00.000000Z")
    server.add("RUNNING")
    assert len(table(perdure("jobs", "queue", "--since", "1d", env={"COLUMNS": "200"}))) == 2
    assert len(server.called("GET .*/jobs.*")) <= 2, "the next page is requested before the current one is looked at"


@pytest.mark.parametrize("width", range(80, 201, 15))
def test_table__fits_the_width(perdure: RunPerdure, three_jobs: Controller, width: int) -> None:
    lines = perdure("jobs", "queue", env={"COLUMNS": str(width)}).stdout.splitlines()
    assert max(map(len, lines)) <= width
    for needed in ("ID", "NAME", "STATUS", "WHERE"):
        assert needed in lines[1]
    assert "RUNNING (task: 1)" in lines[3]


def test_table__keeps_the_main_columns_at_80(perdure: RunPerdure, three_jobs: Controller) -> None:
    lines = perdure("jobs", "queue", env={"COLUMNS": "80"}).stdout.splitlines()
    assert lines[1].split() == ["ID", "NAME", "RAN", "#REC", "COST", "(SAVED)", "STATUS", "WHERE"]
    assert "…" in lines[3], "a long name is cut, marked with an ellipsis"


def test_table__is_uncut_and_uncolored_in_a_pipe(in_process: StartPerdure, three_jobs: Controller) -> None:
    out, _ = in_process("jobs", "queue", "--all").communicate(timeout=scaled(30))
    assert "nightly-training-of-everything" in out
    assert "…" not in out
    assert "\x1b" not in out


def test_colors__are_used_on_a_terminal_without_no_color(on_terminal: StartOnTerminal, three_jobs: Controller) -> None:
    colored, plain = on_terminal("jobs", "queue"), on_terminal("jobs", "queue", NO_COLOR="1")
    assert colored.end() == plain.end() == 0
    assert "\x1b[33mRECOVERING" in colored.text
    assert "\x1b" not in plain.text
    assert re.sub(r"\x1b\[\d*m", "", colored.text) == plain.text, "colors do not move columns"


def test_table__aligns_wide_characters(perdure: RunPerdure, server: Controller) -> None:
    server.add("RUNNING", name="訓練")
    server.add("RUNNING", name="ascii")
    lines = perdure("jobs", "queue", env={"COLUMNS": "200"}).stdout.splitlines()
    assert lines[3].index("RUNNING") == lines[2].index("RUNNING") - 2


def test_queue__without_jobs(perdure: RunPerdure, server: Controller) -> None:
    assert perdure("jobs", "queue").stdout == "No in-progress managed jobs.\n"


def test_json__is_the_list_of_the_api(perdure: RunPerdure, three_jobs: Controller) -> None:
    result = perdure("jobs", "queue", "-o", "json")
    jobs = json.loads(result.stdout)
    assert [(job["job_id"], job["task_index"]) for job in jobs] == [(3, 0), (2, 0), (2, 1), (2, 2), (1, 0)]
    assert jobs[0] == three_jobs.jobs[3][0]


def test_filters__by_status_name_and_finished(perdure: RunPerdure, three_jobs: Controller) -> None:
    def ids(*words: str) -> set[int]:
        return {job["job_id"] for job in json.loads(perdure("jobs", "queue", "-o", "json", *words).stdout)}

    assert ids("--skip-finished") == {2, 3}
    assert ids("-s", "running,RECOVERING") == {2, 3}
    assert ids("-s", "RECOVERING", "-s", "SUCCEEDED") == {1, 2, 3}
    assert ids("-n", "bert") == {3}
    result = perdure("jobs", "queue", "-s", "RUNING")
    assert result.exit_code == 2
    assert "unknown status RUNING" in result.stderr


def test_limit__mentions_that_there_are_more(perdure: RunPerdure, server: Controller) -> None:
    for _ in range(5):
        server.add("SUCCEEDED")
    lines = perdure("jobs", "queue", "-l", "2").stdout.splitlines()
    assert lines[-1] == "Showing the newest 2; to see all: perdure jobs queue --all"
    assert len(perdure("jobs", "queue", "-l", "5").stdout.splitlines()) == 7
    assert len(perdure("jobs", "queue", "-a").stdout.splitlines()) == 7
    both = perdure("jobs", "queue", "-a", "-l", "3")
    assert (both.exit_code, both.stderr) == (2, "Error: --all and --limit exclude each other\n")


def test_all__fetches_and_prints_page_by_page(perdure: RunPerdure, server: Controller) -> None:
    for number in range(PAGE_SIZE + 5):
        name = "long-ago-there-were-longer-names" if number < 5 else "now"
        server.add("PENDING" if number == 0 else "SUCCEEDED", name=name, message=None if number else "no offer")
    result = perdure("jobs", "queue", "-a", "-o", "json")
    listed = json.loads(result.stdout)
    assert [job["job_id"] for job in listed] == list(range(PAGE_SIZE + 5, 0, -1))
    assert result.stdout == json.dumps(listed, indent=2) + "\n"
    assert len(server.called("GET .*/jobs.*")) == 2
    *lines, wait_reason = perdure("jobs", "queue", "-a").stdout.splitlines()
    assert lines[0] == "In progress tasks: 1 PENDING"
    assert wait_reason == "Job 1 is waiting: no offer", "wait reasons come last"
    assert [line.split()[0] for line in lines[2:]] == [str(id) for id in range(PAGE_SIZE + 5, 0, -1)]
    assert "long-ago-there-were-longer-names" in lines[-1], (
        "nothing is cut in a pipe, even if the first page was narrower"
    )
    narrow = perdure("jobs", "queue", "-a", env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, narrow)) <= 80
    assert len(narrow) == PAGE_SIZE + 5 + 3


def test_json__without_jobs_is_an_empty_list(perdure: RunPerdure, server: Controller) -> None:
    assert json.loads(perdure("jobs", "queue", "-a", "-o", "json").stdout) == []


def test_all__stops_fetching_when_the_pipe_is_closed(in_process: StartPerdure, server: Controller) -> None:
    for _ in range(4 * PAGE_SIZE):
        server.add("SUCCEEDED")
    queue = in_process("jobs", "queue", "-a")
    assert [queue.stdout.readline() for _ in range(3)][2].startswith(str(4 * PAGE_SIZE))
    queue.stdout.close()
    queue.wait(timeout=scaled(30))
    assert len(server.called("GET .*/jobs.*")) < 4


def test_watch__redraws_in_place_until_ctrl_c(on_terminal: StartOnTerminal, three_jobs: Controller) -> None:
    terminal = on_terminal("jobs", "queue", "--watch")
    terminal.read_until("Ctrl-C to quit")
    assert "\x1b[H" in terminal.text
    three_jobs.end(3, "SUCCEEDED")
    terminal.read_until("In progress tasks: 1 RUNNING, 1 PENDING")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0


def test_queue__of_an_unknown_name_says_so(perdure: RunPerdure, three_jobs: Controller) -> None:
    assert perdure("jobs", "queue", "-n", "nobody").stdout == "No job is named 'nobody'.\n"
    assert perdure("jobs", "queue", "-n", "no*").stdout == "No job has a name that matches 'no*'.\n"
    assert perdure("jobs", "queue", "-n", "nobody", "-s", "FAILED").stdout == "No such job is named 'nobody'.\n"


def test_queue__says_that_its_counts_are_of_all_jobs(perdure: RunPerdure, server: Controller) -> None:
    server.add("RUNNING", name="nightly")
    server.add("RUNNING", name="other")
    assert perdure("jobs", "queue", "-n", "nightly").stdout.startswith("In progress tasks, of all jobs: 2 RUNNING\n")
