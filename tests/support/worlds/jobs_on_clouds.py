"""A controller on fake clouds whose machines really run: jobs, from their launch to the bill."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.fakes.azure import FakeAzure
from support.fakes.ec2 import FakeEc2
from support.fakes.gce import FakeGce
from support.fakes.purchases import Purchase
from support.helpers.controllers import Controller, running_controller

FAKES: dict[str, Any] = {"aws": FakeEc2, "gcp": FakeGce, "azure": FakeAzure}
UNFINISHED = ("PENDING", "STARTING", "RUNNING", "RECOVERING")


@dataclass(frozen=True)
class JobsOnClouds:
    """`fakes`: the fake clouds, by the controller's names for them."""

    controller: Controller
    fakes: Mapping[str, Any]

    def launch(self, name: str, run: str, **more: Any) -> int:
        """Launch a job on spot machines of the first cloud, unless `more` changes that; return its ID."""
        task = {"name": name, "run": run, "resources": {"infra": next(iter(self.fakes)), "use_spot": True}, **more}
        return int(self.controller.client.submit(name, [task], user="", key=name)["job_id"])

    def until(self, job: int, status: str) -> dict[str, Any]:
        def reached() -> bool:
            shown = self.controller.job(job)
            assert shown["status"] in (status, *UNFINISHED), shown
            return bool(shown["status"] == status)

        self.controller.until(reached, f"job {job} {status}")
        return self.controller.job(job)

    def until_printed(self, job: int, text: str) -> None:
        self.controller.until(lambda: text in self.controller.log(job), f"{text!r} in the log of job {job}")

    def until_prices_are_known(self) -> None:
        """Until prices are fetched, jobs are launched and charged at the built-in table's prices."""

        def all_priced() -> bool:
            return all(row["priced_at"] for row in self.controller.client.gpus() if row["cloud"] in self.fakes)

        self.controller.until(all_priced, "what all clouds sell")

    def living(self) -> list[Purchase]:
        return [one for fake in self.fakes.values() for one in fake.living()]

    def check_cost_matches_bill(self, job: int, *, within_s: float = 0.0) -> None:
        """Check that no machine is left, and that the cost shown by the controller is what the clouds bill.

        `within_s`: how late each machine's end may have been observed, where its cloud does not report it.
        """
        shown: dict[str, Any] = {}

        def all_gone() -> bool:
            shown.update(self.controller.job(job))
            return all(attempt["gone_at"] for attempt in shown["attempts"])

        self.controller.until(all_gone, "the end of every attempt")
        self.controller.until(lambda: not self.living(), "the end of every machine")
        purchases = [one for fake in self.fakes.values() for one in fake.purchases() if _job_of(one) == str(job)]
        bill = sum(one.usd for one in purchases)
        assert bill > 0
        unseen = sum(one.price_per_hour for one in purchases) * within_s / 3600
        assert shown["cost_usd"] == pytest.approx(bill, rel=1e-6, abs=unseen)


def keys_in(s3: Any, bucket: str) -> list[str]:
    """The keys of the bucket; none if the bucket does not exist. `s3`: a boto3 client."""
    try:
        return [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
    except s3.exceptions.NoSuchBucket:
        return []


def last_step(keys: list[str]) -> int:
    """The highest of the files `step-0001` …; 0 if none."""
    return max((int(key.removeprefix("step-")) for key in keys if key.startswith("step-")), default=0)


@contextlib.contextmanager
def running_jobs_on_clouds(
    folder: Path, *names: str, config: str = "", environ: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[JobsOnClouds]:
    """A controller in `home`, and each cloud's machines in a folder of its name; at the end no machine is left.

    `config`, `environ`: additions to config.yaml and to the controller's environment. `settings`: additions to the
    first cloud's section.
    """
    home = folder / "home"
    home.mkdir()
    with contextlib.ExitStack() as stack:
        fakes = {name: stack.enter_context(FAKES[name](folder / name, hidden=home)) for name in names}
        if settings:
            fakes[names[0]].settings = settings
        (home / "config.yaml").write_text("".join(fake.config for fake in fakes.values()) + config)
        known = {key: value for fake in fakes.values() for key, value in fake.environ.items()} | dict(environ or {})
        with running_controller(home, environ=known) as controller:
            one = JobsOnClouds(controller, fakes)
            one.until_prices_are_known()
            yield one
        assert not one.living()


def _job_of(one: Purchase) -> str:
    """The job of a machine. Google's labels cannot contain colons."""
    return one.tags.get("perdure:job") or one.tags["perdure-job"]
