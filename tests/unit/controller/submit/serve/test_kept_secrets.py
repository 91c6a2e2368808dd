"""The task of a service as the dashboard gets it, and updates that were made of it."""

from __future__ import annotations

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
