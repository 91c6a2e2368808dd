"""A cloud account that a test may spend on, and a spending cap.

Machines are selected by a label of this run: nothing else in the account is touched.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from support.helpers.controllers import Controller
from support.worlds.account_providers import KINDS, LABEL, Kind, Machine, Provider, Sections
from support.worlds.migrating_job import MigratingJob

WANTED = "PERDURE_REAL_CLOUD"
LISTEN = "PERDURE_REAL_LISTEN"
CAP = "PERDURE_REAL_CAP_USD"
REGION = "PERDURE_REAL_REGION"
FIS_ROLE = "PERDURE_REAL_FIS_ROLE"
DEFAULT_CAP_USD = 1.0
POLL_S = 5.0
END_TIMEOUT_S = 300.0


class NotSetUp(Exception):
    """Names what is missing and what to do."""


class CapReached(AssertionError):
    """The cap was reached, and all machines of this run were ended."""


@dataclass(frozen=True)
class Account:
    """`sections`: of config.yaml, for the cloud and its buckets. `listen`: the address at which machines reach the
    controller."""

    cloud: str
    region: str
    cap_usd: float
    sections: Sections
    listen: str | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Account:
        """The account named by the environment. Raises NotSetUp."""
        cloud = environ.get(WANTED, "")
        if cloud not in KINDS:
            raise NotSetUp(f"{WANTED}={cloud!r}: set it to {', '.join(KINDS)}: the clouds that this test knows")
        if LISTEN not in environ:
            raise NotSetUp(f"{LISTEN} is not set: name an address of this computer that machines of {cloud} can call")
        try:
            cap_usd = float(environ.get(CAP, DEFAULT_CAP_USD))
        except ValueError:
            cap_usd = 0.0
        if not 0 < cap_usd < float("inf"):
            raise NotSetUp(f"{CAP}={environ.get(CAP)!r}: give USD, a number above 0")
        kind = KINDS[cloud]
        region = environ.get(REGION, kind.region)
        sections: dict[str, dict[str, Any]] = {cloud: {"regions": [region], **kind.more}, **kind.sections}
        if cloud == "aws":
            sections["s3"] = {"region": region}
            if FIS_ROLE in environ:
                sections["aws"]["fis_role"] = environ[FIS_ROLE]
        account = cls(cloud, region, cap_usd, sections, environ[LISTEN])
        account.check()
        return account

    def check(self) -> None:
        """Raises NotSetUp if the cloud rejects the credentials."""
        if why := self.provider.unusable():
            raise NotSetUp(why)
        try:
            self.machines()
        except Exception as error:
            raise NotSetUp(
                f"{self.cloud} did not let us in: {error}; `perdure check {self.cloud}` says more"
            ) from error

    @property
    def config(self) -> str:
        """The config.yaml of a controller with this cloud only."""
        listen = {"host": self.listen, "port": 8443, "tls": "auto"}
        reported = {"local": False, **self.sections, "listen": listen}
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in reported.items())

    @property
    def kind(self) -> Kind:
        return KINDS[self.cloud]

    @cached_property
    def provider(self) -> Provider:
        return self.kind.open(self.sections)

    @property
    def bucket(self) -> str:
        return f"{LABEL}-{self.run}"

    @property
    def can_interrupt(self) -> bool:
        """Whether the cloud interrupts a machine on request. EC2 needs a role for that."""
        return self.cloud != "aws" or "fis_role" in self.sections["aws"]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the task's machines."""
        return {LABEL: self.run}

    def machines(self) -> list[Machine]:
        """All machines of this run that are still billed."""
        return list(self.provider.machines(self.run))

    def end_all(self) -> None:
        """Request the end of every machine of this run."""
        for machine in self.machines():
            self.provider.end(machine)

    def empty(self) -> None:
        """Remove this run's bucket."""
        self.provider.remove(self.bucket)


class Cap:
    """Checks every few seconds what this run has cost; at the cap, ends its machines, repeatedly.

    The cost is the on-demand price for each machine's lifetime, so it is not too low as long as the controller's price
    table is right. At the end of the block no machine is left, whatever happened in it.
    """

    def __init__(self, account: Account, poll_s: float = POLL_S) -> None:
        self._account = account
        self._look_s = poll_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen: dict[str, float] = {}
        self.is_reached = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._end_for_good()
        self.check()

    def check(self) -> None:
        """Raises CapReached."""
        if self.is_reached:
            raise CapReached(f"the run had cost ${self.spent_usd():.4f} of ${self._account.cap_usd:g}: all was ended")

    def spent_usd(self) -> float:
        """An upper bound of what the observed machines have cost."""
        return sum(self._seen.values())

    def look(self, now: float) -> None:
        """`now`: epoch seconds."""
        for one in self._account.machines():
            hours = (now - one.launched_at) / 3600 if one.launched_at is not None else 0.0
            price = self._account.kind.price(one.instance_type, self._account.region)
            self._seen[one.id] = max(self._seen.get(one.id, 0.0), price * hours)
        if self.spent_usd() >= self._account.cap_usd:
            self.is_reached = True
        if self.is_reached:
            self._account.end_all()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            try:
                self.look(_now())
            except Exception as error:
                print(f"the cap could not look: {error}")

    def _end_for_good(self) -> None:
        given_up_at = _now() + END_TIMEOUT_S
        while left := self._account.machines():
            assert _now() < given_up_at, f"still there, and billed: {[one.id for one in left]}; end them by hand"
            self._account.end_all()
            threading.Event().wait(1.0)


def run_migrating_job(controller: Controller, account: Account, cap: Cap, *, timeout_s: float) -> dict[str, Any]:
    """Run the job that loses two machines: the first to an interruption by the cloud, if it makes one on request, the
    second to a termination. Returns the job. Raises CapReached."""
    kind = account.kind
    wanderer = MigratingJob(
        controller, account.bucket, account.provider.keys, timeout_s=timeout_s, check=cap.check, store=kind.store
    )
    job = wanderer.launch(infra=account.cloud, instance_type=kind.instance_type, labels=account.labels)
    first = wanderer.begun(job, 1)
    if account.can_interrupt:
        controller.perdure("jobs", "preempt", job)
    else:
        account.end_all()
    second = wanderer.begun(job, 2)
    account.end_all()
    shown = wanderer.finished(job)
    wanderer.check_log(job, shown["task_id"], durable=(first, second), notices=1 if account.can_interrupt else 0)
    assert shown["recovery_count"] == 2
    controller.until(lambda: not account.machines(), "the end of every machine", timeout_s)
    return shown


def _now() -> float:
    return datetime.now().timestamp()  # noqa: TID251 - clouds have the real clock
