"""The task of a service as the dashboard gets it, and updates that were made of it."""

from __future__ import annotations

import pytest

from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.serve.kept_secrets import with_kept_secrets
from unit.controller.submit.serve.conftest import SERVICE, Controller


def test_spec__shows_the_task_without_its_secrets(alone: Controller) -> None:
    probe = {"path": "/up", "headers": {"Authorization": "Bearer canary"}}
    workdir = {"url": "https://user:password@example.org/x.git"}
    alone.up({**SERVICE, "service": {"readiness_probe": probe}, "secrets": {"KEY": "canary"}, "workdir": workdir})
    shown = alone.call("GET", "/services/model/spec").json()
    assert (shown["version"], shown["secrets"]) == (1, ["KEY"])
    assert "Bearer ${KEY}" in shown["yaml"]
    assert not {word for word in ("canary", "password") if word in shown["yaml"]}


def test_update__keeps_the_secrets_that_are_named(alone: Controller) -> None:
    """As the dashboard does, which has the task without them."""
    probe = {"path": "/up", "headers": {"Authorization": "Bearer canary"}}
    secrets = {"KEY": "canary", "OTHER": "another"}
    alone.up({**SERVICE, "service": {"readiness_probe": probe}, "secrets": secrets})
    shown = alone.call("GET", "/services/model/spec").json()
    parsed = alone.call("POST", "/tasks", yaml=shown["yaml"])
    assert parsed.status_code == 200, parsed.text
    (task,) = parsed.json()["tasks"]
    body = {"task": {**task, "secrets": {"OTHER": "changed"}}, "key": "k2", "kept_secrets": shown["secrets"]}
    assert alone.call("POST", "/services/model/update", **body).json()["version"] == 2
    requests = alone.daemon.api_context.services.requests  # type: ignore[union-attr]
    config = requests.newest_config(requests.get("model"))
    assert config["secrets"] == {"KEY": "canary", "OTHER": "changed"}
    assert config["service"]["readiness_probe"]["headers"] == {"Authorization": "Bearer canary"}
    alone.call("POST", "/services/model/update", task=task, key="k3")
    assert "secrets" not in requests.newest_config(requests.get("model")), "without being named, none is kept"


def test_update__keeps_the_user_and_password_of_the_git_url(alone: Controller) -> None:
    url = "https://alice:ghp_canary@example.org/a.git"
    alone.up({**SERVICE, "workdir": {"url": url}})
    shown = alone.call("GET", "/services/model/spec").json()
    assert "https://${workdir.url}@example.org/a.git" in shown["yaml"]
    (task,) = alone.call("POST", "/tasks", yaml=shown["yaml"].replace("a.git", "b.git")).json()["tasks"]
    body = {"task": task, "key": "k2", "kept_secrets": shown["secrets"]}
    assert alone.call("POST", "/services/model/update", **body).json()["version"] == 2
    requests = alone.daemon.api_context.services.requests  # type: ignore[union-attr]
    config = requests.newest_config(requests.get("model"))
    assert config["workdir"]["url"] == "https://alice:ghp_canary@example.org/b.git"
    assert "secrets" not in config


def test_placeholder_of_a_git_url__is_refused_where_there_is_nothing_to_keep(alone: Controller) -> None:
    task = {**SERVICE, "workdir": {"url": "https://${workdir.url}@example.org/a.git"}}
    refused = alone.up(task)
    assert (refused.status_code, refused.json()["error"]["where"]) == (400, "workdir.url")
    alone.up({**SERVICE, "workdir": {"url": "https://example.org/a.git"}})
    refused = alone.call("POST", "/services/model/update", task=task, key="k2")
    assert (refused.status_code, refused.json()["error"]["where"]) == (400, "workdir.url")


def test_git_credentials__of_somebody_else_are_not_kept() -> None:
    earlier = {"workdir": {"url": "https://alice:canary@example.org/a"}}
    new = {"workdir": {"url": "https://${workdir.url}@evil.example/a"}}
    operator = Requester("bob", for_owner=True, may_run_callbacks=False)
    with pytest.raises(RequestRejected, match="those of alice"):
        with_kept_secrets(new, earlier, [], owner="alice", by=operator)
    own = with_kept_secrets(new, earlier, [], owner="bob", by=operator)
    assert own["workdir"]["url"] == "https://alice:canary@evil.example/a"
