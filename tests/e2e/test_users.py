"""Named users, as they use the command line of a real controller: what each may see and end, and revoked tokens."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from support.helpers.controllers import ROOT, Controller, running_controller
from support.helpers.timing import scaled


@dataclass(frozen=True)
class Shared:
    """A controller of several users. `admin` uses the controller's own token."""

    admin: Controller

    def user(self, name: str, *options: object) -> tuple[Controller, str]:
        """The command line of a new user, and the id of the token."""
        self.admin.perdure("users", "create", name, *options)
        made = self.admin.perdure("tokens", "create", name)
        token = made.stdout.strip()
        assert made.stdout.count("\n") == 1, "the token alone, for scripts"
        environ = {"PERDURE_ENDPOINT": self.admin.client.endpoint.url, "PERDURE_TOKEN": token}
        return replace(self.admin, environ={**self.admin.environ, **environ}), token.split("_")[1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with running_controller(tmp_path_factory.mktemp("home")) as controller:
        yield Shared(controller)


def launch(user: Controller, name: str) -> int:
    words = ("jobs", "launch", "-d", "-y", "-n", name, "--infra", "local", "--cpus", "1", "--", "sleep", "600")
    user.perdure(*words)
    jobs = json.loads(user.perdure("jobs", "queue", "-o", "json").stdout)
    return int(next(job["job_id"] for job in jobs if job["name"] == name))


@pytest.mark.slow
def test_users__see_and_end_what_is_theirs(shared: Shared) -> None:
    assert "No users." in shared.admin.perdure("users", "list").stdout
    alice, alices_token = shared.user("alice")
    bob, bobs_token = shared.user("bob")
    assert alice.perdure("whoami").stdout.startswith("alice, user; token ")
    hers, his = launch(alice, "hers"), launch(bob, "his")
    assert shared.admin.job(hers)["user"] == "alice"
    assert "hers" not in bob.perdure("jobs", "queue").stdout
    for words in (("jobs", "logs", hers), ("jobs", "show", hers), ("jobs", "exec", hers, "--", "id")):
        refused = bob.perdure(*words, check=False)
        assert refused.returncode != 0, words
        assert f"no job {hers}" in refused.stderr
    assert f"no job {hers}" in bob.perdure("jobs", "cancel", "-y", hers, check=False).stderr
    assert f"{his} is scheduled" in bob.perdure("jobs", "cancel", "-y", "--all").stdout
    assert "No jobs to cancel" in bob.perdure("jobs", "cancel", "-y", "--all-users").stdout
    assert shared.admin.job(hers)["status"] in ("STARTING", "RUNNING")
    shared.admin.until(lambda: alice.perdure("jobs", "exec", hers, "--", "true", check=False).returncode == 0, "hers")
    checked = bob.perdure("check", "local")
    assert "local: usable" in checked.stdout
    assert "needs the role operator" in checked.stderr
    refused = bob.perdure("users", "list", check=False)
    assert "this needs the role admin" in refused.stderr

    shared.admin.perdure("tokens", "revoke", bobs_token)
    refused = bob.perdure("jobs", "queue", check=False)
    assert "rejects this token" in refused.stderr
    assert "revoked" in shared.admin.perdure("tokens", "list", "bob").stdout

    def bobs_actions() -> set[str]:
        listed = shared.admin.perdure("audit", "--user", "bob", "-o", "json").stdout
        return {entry["action"] for entry in json.loads(listed)}

    assert {"job.submit", "job.cancel", "job.access"} <= bobs_actions()
    # What is refused is written a moment later, several at a time.
    shared.admin.until(lambda: "GET /api/v1/users" in bobs_actions(), "the entry of the refused request")
    assert "alice" in shared.admin.perdure("audit", "--action", "job.", "--since", "1h").stdout

    with entered(alice, hers) as session:  # a session on a machine ends with its token
        shared.admin.perdure("tokens", "revoke", alices_token)
        _, errors = session.communicate(timeout=scaled(30))
        assert session.returncode != 0
        assert "revoked" in errors


@contextlib.contextmanager
def entered(user: Controller, job_id: int) -> Iterator[subprocess.Popen[str]]:
    """A command that runs on the job's machine, and has printed something."""
    words = [*user.program, "jobs", "exec", str(job_id), "--", "sh", "-c", "echo here; sleep 600"]
    environ = {**os.environ, **user.environ, "PERDURE_HOME": str(user.home)}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=ROOT, env=environ, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        try:
            yield process
        finally:
            process.kill()


def test_budget__is_set_and_shown(shared: Shared) -> None:
    carla, _ = shared.user("carla", "--role", "operator", "--max-running-jobs", 3)
    shared.admin.perdure("users", "set-budget", "carla", "500", "--then", "end")
    shown = shared.admin.perdure("users", "list").stdout
    assert "$500.00" in shown
    assert json.loads(carla.perdure("whoami", "-o", "json").stdout)["budget_usd"] == 500.0
    assert "no budget" in shared.admin.perdure("users", "set-budget", "carla", "none").stderr
    for words in (("set-budget", "carla", "much"), ("update", "carla"), ("update", "carla", "--max-jobs", "-1")):
        assert shared.admin.perdure("users", *words, check=False).returncode == 2
    assert shared.admin.perdure("users", "update", "nobody", "--max-jobs", "1", check=False).returncode == 102
    shared.admin.perdure("users", "disable", "carla")
    assert "rejects this token" in carla.perdure("whoami", check=False).stderr
