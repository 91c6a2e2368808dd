"""`perdure jobs cancel`."""

from __future__ import annotations

import json

import pytest

from perdure.cli.jobs import cancel
from unit.cli.commands import RunPerdure, StartOnTerminal
from unit.sdk.contract_server import NOW, Controller


def test_cancel__reports_each_job(perdure: RunPerdure, server: Controller) -> None:
    server.add("RUNNING")
    server.add("SUCCEEDED")
    server.add("RUNNING")
    assert perdure("jobs", "cancel", 3, "-y").stdout == "Job with ID 3 is scheduled to be cancelled.\n"
    assert server.called("POST .*cancel")[-1][2] == {
        "ids": [3], "name": None, "all": False, "graceful": True, "grace_s": None,
    }  # fmt: skip
    result = perdure("jobs", "cancel", 1, 2, 3, 9, "-y", "--no-graceful")
    assert result.exit_code == 102
    assert result.stdout == "Jobs with IDs 1, 3 are scheduled to be cancelled.\nJob 2 has already finished.\n"
    assert "there is no job 9\n" in result.stderr
    assert server.called("POST .*cancel")[-1][2]["graceful"] is False


def test_cancel__as_json(perdure: RunPerdure, server: Controller) -> None:
    server.add("RUNNING")
    server.add("SUCCEEDED")
    result = perdure("jobs", "cancel", 1, 2, 9, "-y", "-o", "json")
    assert json.loads(result.stdout) == {"cancelled": [1], "finished": [2], "unknown": [9]}
    assert (result.exit_code, "there is no job 9" in result.stderr) == (102, True)
    server.end(1, "CANCELLED")
    nothing = perdure("jobs", "cancel", "--all-users", "-y", "-o", "json")
    assert json.loads(nothing.stdout) == {"cancelled": [], "finished": [], "unknown": []}


def test_listed__joins_consecutive_ids() -> None:
    assert cancel._listed([5, 1, 2, 3, 7, 8]) == "1-3, 5, 7, 8"


def test_cancel__by_name_and_all(perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    nothing = "No jobs to cancel of ada; --all-users cancels those of others, too.\n"
    assert perdure("jobs", "cancel", "--all", "-y").stdout == nothing
    assert perdure("jobs", "cancel", "--all-users", "-y").stdout == "No jobs to cancel.\n"
    server.add("RUNNING", name="a")
    server.add("PENDING", name="b")
    server.add("SUCCEEDED", name="b")
    server.add("RUNNING", name="c", user="bob")
    result = perdure("jobs", "cancel", "-n", "b", "-y", "--graceful-timeout", "300")
    assert result.stdout == "Job with ID 2 is scheduled to be cancelled.\n"
    assert server.called("POST .*cancel")[-1][2]["grace_s"] == 300
    assert "IDs 1, 2 are" in perdure("jobs", "cancel", "-a", "-y").stdout
    assert "IDs 1, 2, 4 are" in perdure("jobs", "cancel", "-u", "-y").stdout


def add_named_user(server: Controller, name: str) -> None:
    """From now on there are named users, and the caller has the controller's own token."""
    limits = {"max_jobs": None, "max_running_jobs": None, "budget_usd": None, "spent_usd": None}
    server.answers["/api/v1/users"] = [
        {"name": name, "role": "user", "created_at": NOW, "disabled_at": None, "budget_action": "keep", **limits}
    ]
    server.answers["/api/v1/whoami"] = {
        "user": "admin", "role": "admin", "token": "", "token_role": "admin", "expires_at": None, "has_users": True,
        "sees_all": True, "permissions": ["administer"], "budget_usd": None, "spent_usd": None,
    }  # fmt: skip


def test_cancel_all__includes_own_jobs_of_before_named_users(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "root")
    for user in ("root", "admin", "alice", "bob"):
        server.add("RUNNING", user=user)
    add_named_user(server, "alice")
    result = perdure("jobs", "cancel", "--all", "-y")
    assert result.stdout == "Jobs with IDs 1, 2 are scheduled to be cancelled.\n"
    assert "job 4 of bob is left, launched before there were named users" in result.stderr
    assert "perdure jobs cancel 4\n" in result.stderr
    for job_id in (1, 2):
        server.end(job_id, "CANCELLED")
    again = perdure("jobs", "cancel", "--all", "-y")
    assert again.stdout == "No jobs to cancel of admin and root; --all-users cancels those of others, too.\n"
    assert "job 4 of bob is left" in again.stderr


def test_cancel_all__leaves_the_jobs_that_became_those_of_a_named_user(
    perdure: RunPerdure, server: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "alice")
    server.add("RUNNING", user="alice")
    server.add("RUNNING", user="admin")
    add_named_user(server, "alice")
    result = perdure("jobs", "cancel", "--all", "-y")
    assert (result.stdout, result.stderr) == ("Job with ID 2 is scheduled to be cancelled.\n", "")


def test_cancel__by_pattern_asks_with_the_number_of_jobs(server: Controller, on_terminal: StartOnTerminal) -> None:
    for name in ("sweep-1", "sweep-2", "other"):
        server.add("RUNNING", name=name)
    terminal = on_terminal("jobs", "cancel", "-n", "sweep-*")
    terminal.read_until("Cancel 2 jobs named sweep-*? [Y/n]")
    terminal.write("y\n")
    assert terminal.end() == 0
    assert server.called("POST .*cancel")[-1][2]["ids"] == [2, 1]


@pytest.mark.parametrize("words", [[], ["1", "--all"], ["-n", "x", "1"]])
def test_cancel__requires_one_selection(perdure: RunPerdure, server: Controller, words: list[str]) -> None:
    result = perdure("jobs", "cancel", "-y", *words)
    assert result.exit_code == 2
    assert "specify which jobs to cancel" in result.stderr
    assert server.calls == []


def test_cancel__rejects_an_empty_name(perdure: RunPerdure, server: Controller) -> None:
    server.add("RUNNING")
    result = perdure("jobs", "cancel", "-n", "", "-y")
    assert (result.exit_code, "the name is empty" in result.stderr) == (2, True)
    assert server.calls == []


def test_cancel__asks_for_confirmation(perdure: RunPerdure, server: Controller, on_terminal: StartOnTerminal) -> None:
    server.add("RUNNING")
    assert perdure("jobs", "cancel", 1).exit_code == 2
    assert server.calls == []
    terminal = on_terminal("jobs", "cancel", "1")
    terminal.read_until("Cancel job 1? [Y/n]")
    terminal.write("n\n")
    assert terminal.end() == 1
    assert "Nothing was changed." in terminal.text
    assert "Error" not in terminal.text
    assert server.called("POST .*cancel") == []


def test_cancel__unknown_name_exits_with_102(perdure: RunPerdure, server: Controller) -> None:
    server.add("RUNNING", name="a")
    result = perdure("jobs", "cancel", "-n", "nobody", "-y")
    assert result.exit_code == 102
    assert "there is no unfinished job named 'nobody'" in result.stderr


def test_cancel__all_is_declined_by_default(server: Controller, on_terminal: StartOnTerminal) -> None:
    server.add("RUNNING")
    terminal = on_terminal("jobs", "cancel", "--all", USER="ada")
    terminal.read_until("Cancel 1 job of ada? [y/N]")
    terminal.write("\n")
    assert terminal.end() == 1
    assert server.called("POST .*cancel") == []
