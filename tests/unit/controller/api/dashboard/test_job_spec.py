"""Task YAML: that of a job without its secrets, and text that is parsed."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from unit.controller.api.dashboard.conftest import Dashboard

TASK: dict[str, Any] = {
    "name": "train",
    "envs": {"STEPS": "10"},
    "secrets": {"TOKEN": "s3cret-value"},
    "workdir": {"url": "https://s3cret-value@git.example/repo.git"},
    "run": "echo one\necho two\n",
}


def submit(dashboard: Dashboard, task: dict[str, Any]) -> int:
    response = dashboard.caller.post("/api/v1/jobs", json={"tasks": [task], "user": "ada"})
    assert response.status_code == 201, response.text
    return int(response.json()["job_id"])


def test_spec__has_names_of_secrets_and_no_values(dashboard: Dashboard) -> None:
    job_id = submit(dashboard, TASK)
    response = dashboard.caller.get(f"/api/v1/jobs/{job_id}/spec")
    assert "s3cret-value" not in response.text
    (task,) = response.json()["tasks"]
    assert (task["name"], task["secrets"], task["config"]["envs"]) == ("train", ["TOKEN"], {"STEPS": "10"})
    assert "run: |" in task["yaml"], "several lines are a block, as people write them"


def test_spec__can_be_submitted_again(dashboard: Dashboard) -> None:
    plain = {name: TASK[name] for name in ("name", "envs", "run")}
    job_id = submit(dashboard, plain)
    text = dashboard.caller.get(f"/api/v1/jobs/{job_id}/spec").json()["tasks"][0]["yaml"]
    parsed = dashboard.caller.post("/api/v1/tasks", json={"yaml": text}).json()
    again = submit(dashboard, parsed["tasks"][0])
    specs = [dashboard.caller.get(f"/api/v1/jobs/{id}/spec").json()["tasks"] for id in (job_id, again)]
    assert specs[0] == specs[1]
    assert yaml.safe_load(text)["run"] == TASK["run"]


def test_spec__of_an_unknown_job(dashboard: Dashboard) -> None:
    assert dashboard.caller.get("/api/v1/jobs/77/spec").status_code == 404


def test_parsed_tasks__of_a_pipeline(dashboard: Dashboard) -> None:
    text = "name: two\n---\nname: a\nrun: one\n---\nname: b\nrun: two\n"
    parsed = dashboard.caller.post("/api/v1/tasks", json={"yaml": text}).json()
    assert parsed["name"] == "two"
    assert [task["run"] for task in parsed["tasks"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("run: [", "not YAML"),
        ("resources: {cpus: many}\nrun: x\n", "cpus"),
        ("", "empty"),
        ("/etc/passwd", ""),
        ("unknown_field: 1\nrun: x\n", "unknown_field"),
    ],
)
def test_parsed_tasks__say_what_is_wrong(dashboard: Dashboard, text: str, problem: str) -> None:
    response = dashboard.caller.post("/api/v1/tasks", json={"yaml": text})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["where"] == "yaml"
    assert problem in error["message"], error


def test_parsed_tasks__reads_no_file(dashboard: Dashboard) -> None:
    path = dashboard.daemon.settings.home / "task.yaml"
    path.write_text("name: of-a-file\nrun: x\n")
    response = dashboard.caller.post("/api/v1/tasks", json={"yaml": str(path)})
    assert "of-a-file" not in response.text


@pytest.mark.parametrize(
    "fields",
    [
        {"workdir": "/etc"},
        {"file_mounts": {"/x": "~/passwords"}},
        {"file_mounts": {"/x": {"name": "a-bucket", "source": "/etc/passwd"}}},
    ],
)
def test_parsed_tasks__rejects_files_of_the_users_computer(dashboard: Dashboard, fields: dict[str, Any]) -> None:
    response = dashboard.caller.post("/api/v1/tasks", json={"yaml": yaml.safe_dump({"run": "x", **fields})})
    assert response.status_code == 400
    assert "perdure jobs launch" in response.json()["error"]["fix"]


def test_parsed_tasks__accepts_buckets_and_repositories(dashboard: Dashboard) -> None:
    task = {
        "run": "x",
        "workdir": {"url": "https://git.example/repo.git"},
        "file_mounts": {"/x": "s3://a-bucket/path", "/y": {"name": "another", "mode": "MOUNT"}},
    }
    assert dashboard.caller.post("/api/v1/tasks", json={"yaml": yaml.safe_dump(task)}).status_code == 200
