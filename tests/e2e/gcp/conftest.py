"""A controller that knows one real cloud: a Compute Engine of the tests' own, whose machines really run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_gce import FakeGce


@dataclass(frozen=True)
class OnGce:
    """`controller`: see tests/e2e/conftest.py."""

    controller: Any
    gce: FakeGce

    def launch(self, name: str, run: str, **more: Any) -> int:
        """A job on spot machines of Google's; its id."""
        task = {"name": name, "run": run, "resources": {"infra": "gcp", "use_spot": True}, **more}
        return int(self.controller.client.submit(name, [task], user="", key=name)["job_id"])

    def until(self, job: int, status: str) -> dict[str, Any]:
        def reached() -> bool:
            shown = self.controller.job(job)
            assert shown["status"] in (status, "PENDING", "STARTING", "RUNNING", "RECOVERING"), shown
            return bool(shown["status"] == status)

        self.controller.until(reached, f"job {job} {status}")
        return dict(self.controller.job(job))

    def until_printed(self, job: int, text: str) -> None:
        self.controller.until(lambda: text in self.controller.log(job), f"{text!r} in the log of job {job}")

    def cost_is_the_bill(self, job: int) -> None:
        """No machine is left; what the controller says that they cost is what Google bills."""
        shown: dict[str, Any] = {}

        def all_gone() -> bool:
            shown.update(self.controller.job(job))
            return all(attempt["gone_at"] for attempt in shown["attempts"])

        self.controller.until(all_gone, "the end of every attempt")
        self.controller.until(lambda: not self.gce.living(), "the end of every machine")
        bill = sum(one.usd for one in self.gce.bought() if one.tags["holdfast-job"] == str(job))
        assert bill > 0
        assert shown["cost_usd"] == pytest.approx(bill, rel=1e-6)


@pytest.fixture
def on_gce(tmp_path: Path, controller_on: Callable[..., contextlib.AbstractContextManager[Any]]) -> Iterator[OnGce]:
    home = tmp_path / "home"
    home.mkdir()
    with FakeGce(tmp_path / "gce", hidden=home) as gce:
        (home / "config.yaml").write_text(gce.config)
        with controller_on(home, environ=gce.environ) as controller:
            yield OnGce(controller, gce)
        assert not gce.living()
