"""A controller that knows one real cloud: an EC2 of the tests' own, whose machines really run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fake_ec2 import FakeEc2


@dataclass(frozen=True)
class OnEc2:
    """`controller`: see tests/e2e/conftest.py."""

    controller: Any
    ec2: FakeEc2

    def launch(self, name: str, run: str, **more: Any) -> int:
        """A job on spot machines of EC2; its id."""
        task = {"name": name, "run": run, "resources": {"infra": "aws", "use_spot": True}, **more}
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


@pytest.fixture
def on_ec2(tmp_path: Path, controller_on: Callable[..., contextlib.AbstractContextManager[Any]]) -> Iterator[OnEc2]:
    home = tmp_path / "home"
    home.mkdir()
    with FakeEc2(tmp_path / "ec2", hidden=home) as ec2:
        (home / "config.yaml").write_text(ec2.config)
        with controller_on(home, environ=ec2.environ) as controller:
            yield OnEc2(controller, ec2)
        assert not ec2.living()
