"""A controller that knows one real cloud: an Azure of the tests' own, whose machines really run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_azure import FakeAzure


@dataclass(frozen=True)
class OnAzure:
    """`controller`: see tests/e2e/conftest.py."""

    controller: Any
    azure: FakeAzure

    def launch(self, name: str, run: str, **more: Any) -> int:
        """A job on spot machines of Azure; its id."""
        task = {"name": name, "run": run, "resources": {"infra": "azure", "use_spot": True}, **more}
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

    def cost_is_about_the_bill(self, job: int, within_s: float) -> None:
        """No machine is left. Azure does not tell when one ended: the controller counts until it sees that."""
        shown: dict[str, Any] = {}

        def all_gone() -> bool:
            shown.update(self.controller.job(job))
            return all(attempt["gone_at"] for attempt in shown["attempts"])

        self.controller.until(all_gone, "the end of every attempt")
        self.controller.until(lambda: not self.azure.living(), "the end of every machine")
        bought = [one for one in self.azure.bought() if one.tags["holdfast:job"] == str(job)]
        bill = sum(one.usd for one in bought)
        assert bill > 0
        assert shown["cost_usd"] == pytest.approx(bill, abs=sum(one.price_per_hour for one in bought) * within_s / 3600)


@pytest.fixture
def on_azure(tmp_path: Path, controller_on: Callable[..., contextlib.AbstractContextManager[Any]]) -> Iterator[OnAzure]:
    home = tmp_path / "home"
    home.mkdir()
    with FakeAzure(tmp_path / "azure", hidden=home) as azure:
        (home / "config.yaml").write_text(azure.config)
        with controller_on(home, environ=azure.environ) as controller:
            yield OnAzure(controller, azure)
        assert not azure.living()
