"""The table of jobs, at any width."""

from __future__ import annotations

import json
import re
import signal

import pytest

from perdure.sdk.client import PAGE

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
def three(named):
    named.add("SUCCEEDED", name="old")
    named.add("SUCCEEDED", "RUNNING", "PENDING", name="nightly-training-of-everything")
    named.add("RECOVERING", name="bert", zone=None, region=None, cloud=None, market=None, cost_usd=0.0)
    return named


def table(result):
    return [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()[1:]]


def test_the_whole_table(perdure, three):
    result = perdure("jobs", "queue", env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "In progress tasks: 1 RUNNING, 1 RECOVERING, 1 PENDING"
    titles, first, whole, *tasks, last = table(result)
    assert titles == [*TITLES, "STATUS", "WHERE"]
    assert first[:3] == ["3", "-", "bert"]
    assert first[-3:] == ["-", "RECOVERING", "-"]
    assert whole[0] == "2"
    assert whole[-5:] == ["21m 36s", "6", "$1.26 (70%)", "RUNNING (task: 1)", "aws/us-east-1a spot"]
    assert [task[:2] for task in tasks] == [["↳", "0"], ["↳", "1"], ["↳", "2"]]
    assert [task[-2] for task in tasks] == ["SUCCEEDED", "RUNNING", "PENDING"]
    assert last[0] == "1"


@pytest.mark.parametrize("width", range(80, 201, 15))
def test_it_fits(perdure, three, width):
    lines = perdure("jobs", "queue", env={"COLUMNS": str(width)}).stdout.splitlines()
    assert max(map(len, lines)) <= width
    for needed in ("ID", "NAME", "STATUS", "WHERE"):
        assert needed in lines[1]
    assert "RUNNING (task: 1)" in lines[3]


def test_at_80_columns_it_still_says_what_matters(perdure, three):
    lines = perdure("jobs", "queue", env={"COLUMNS": "80"}).stdout.splitlines()
    assert lines[1].split() == ["ID", "NAME", "RAN", "#REC", "COST", "(SAVED)", "STATUS", "WHERE"]
    assert "…" in lines[3], "a name that is too long is cut, and shows it"


def test_in_a_pipe_nothing_is_cut_and_nothing_is_coloured(in_process, three):
    out, _ = in_process("jobs", "queue", "--all").communicate(timeout=30)
    assert "nightly-training-of-everything" in out
    assert "…" not in out
    assert "\x1b" not in out


def test_colours_on_a_terminal_unless_they_are_not_wanted(on_terminal, three):
    coloured, plain = on_terminal("jobs", "queue"), on_terminal("jobs", "queue", NO_COLOR="1")
    assert coloured.end() == plain.end() == 0
    assert "\x1b[33mRECOVERING" in coloured.text
    assert "\x1b" not in plain.text
    assert re.sub(r"\x1b\[\d*m", "", coloured.text) == plain.text, "colours do not move columns"


def test_wide_letters_keep_the_columns_straight(perdure, named):
    named.add("RUNNING", name="訓練")
    named.add("RUNNING", name="ascii")
    lines = perdure("jobs", "queue", env={"COLUMNS": "200"}).stdout.splitlines()
    assert lines[3].index("RUNNING") == lines[2].index("RUNNING") - 2


def test_no_jobs(perdure, named):
    assert perdure("jobs", "queue").stdout == "No in-progress managed jobs.\n"


def test_json_is_the_list_of_the_api(perdure, three):
    result = perdure("jobs", "queue", "-o", "json")
    jobs = json.loads(result.stdout)
    assert [(job["job_id"], job["task_index"]) for job in jobs] == [(3, 0), (2, 0), (2, 1), (2, 2), (1, 0)]
    assert jobs[0] == three.jobs[3][0]


def test_filters(perdure, three):
    def ids(*words):
        return {job["job_id"] for job in json.loads(perdure("jobs", "queue", "-o", "json", *words).stdout)}

    assert ids("--skip-finished") == {2, 3}
    assert ids("-s", "running,RECOVERING") == {2, 3}
    assert ids("-s", "RECOVERING", "-s", "SUCCEEDED") == {1, 2, 3}
    assert ids("-n", "bert") == {3}
    result = perdure("jobs", "queue", "-s", "RUNING")
    assert result.exit_code == 2
    assert "there is no status RUNING" in result.stderr


def test_more_than_the_limit_is_mentioned_and_all_shows_it(perdure, named):
    for _ in range(5):
        named.add("SUCCEEDED")
    lines = perdure("jobs", "queue", "-l", "2").stdout.splitlines()
    assert lines[-1] == "The newest 2 are shown; for all: perdure jobs queue --all"
    assert len(perdure("jobs", "queue", "-l", "5").stdout.splitlines()) == 7
    assert len(perdure("jobs", "queue", "-a").stdout.splitlines()) == 7


def test_all_asks_page_by_page_and_prints_as_it_comes(perdure, named):
    for number in range(PAGE + 5):
        name = "long-ago-there-were-longer-names" if number < 5 else "now"
        named.add("PENDING" if number == 0 else "SUCCEEDED", name=name, message=None if number else "no offer")
    result = perdure("jobs", "queue", "-a", "-o", "json")
    every = json.loads(result.stdout)
    assert [job["job_id"] for job in every] == list(range(PAGE + 5, 0, -1))
    assert result.stdout == json.dumps(every, indent=2) + "\n"
    assert len(named.called("GET .*/jobs.*")) == 2
    *lines, waits = perdure("jobs", "queue", "-a").stdout.splitlines()
    assert lines[0] == "In progress tasks: 1 PENDING"
    assert waits == "Job 1 waits: no offer", "what is said of all comes last"
    assert [line.split()[0] for line in lines[2:]] == [str(id) for id in range(PAGE + 5, 0, -1)]
    assert "long-ago-there-were-longer-names" in lines[-1], "in a pipe nothing is cut, whatever the first page held"
    narrow = perdure("jobs", "queue", "-a", env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, narrow)) <= 80
    assert len(narrow) == PAGE + 5 + 3


def test_no_json_is_an_empty_list(perdure, named):
    assert json.loads(perdure("jobs", "queue", "-a", "-o", "json").stdout) == []


def test_all_is_fetched_no_further_than_it_is_read(in_process, named):
    for _ in range(4 * PAGE):
        named.add("SUCCEEDED")
    queue = in_process("jobs", "queue", "-a")
    assert [queue.stdout.readline() for _ in range(3)][2].startswith(str(4 * PAGE))
    queue.stdout.close()
    queue.wait(timeout=30)
    assert len(named.called("GET .*/jobs.*")) < 4


def test_watching_shows_changes_in_place_until_ctrl_c(on_terminal, three):
    terminal = on_terminal("jobs", "queue", "--watch")
    terminal.read_until("Ctrl-C to leave")
    assert "\x1b[H" in terminal.text
    three.end(3, "SUCCEEDED")
    terminal.read_until("In progress tasks: 1 RUNNING, 1 PENDING")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
