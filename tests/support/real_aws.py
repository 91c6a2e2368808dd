"""An account of AWS's that a test may spend on, and what stops it from spending more.

Machines are found by a label of this run alone: whatever else is in the account is never touched.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from controllers import Controller
from holdfast.controller.clouds.aws.catalog import TYPES, on_demand_price
from holdfast.controller.clouds.sold import InstanceType
from on_clouds import keys_in
from wandering import Wanderer

WANTED = "HOLDFAST_REAL_CLOUD"
LISTEN = "HOLDFAST_REAL_LISTEN"
CAP = "HOLDFAST_REAL_CAP_USD"
REGION = "HOLDFAST_REAL_REGION"
FIS_ROLE = "HOLDFAST_REAL_FIS_ROLE"
DEFAULT_CAP_USD = 1.0
INSTANCE_TYPE = "c6a.large"
LABEL = "holdfast-test"
LOOK_S = 5.0
ENDING_WITHIN_S = 300.0


class NotSetUp(Exception):
    """What is missing, and what to do."""


class CapReached(AssertionError):
    """All machines of this run were ended."""


@dataclass(frozen=True)
class Account:
    """`listen`: the address where its machines reach the controller. `fis_role`: None to interrupt nothing by FIS.
    `endpoint_url`: None for AWS itself."""

    region: str
    cap_usd: float
    listen: str | None = None
    fis_role: str | None = None
    endpoint_url: str | None = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Account:
        """The account that the environment names. Raises NotSetUp."""
        if environ.get(WANTED) != "aws":
            raise NotSetUp(f"{WANTED}={environ.get(WANTED, '')!r}: set it to aws, the only cloud that this test knows")
        if LISTEN not in environ:
            raise NotSetUp(f"{LISTEN} is not set: name an address of this computer that EC2 machines can call")
        try:
            cap_usd = float(environ.get(CAP, DEFAULT_CAP_USD))
        except ValueError:
            cap_usd = 0.0
        if not 0 < cap_usd < float("inf"):
            raise NotSetUp(f"{CAP}={environ.get(CAP)!r}: give USD, a number above 0")
        account = cls(environ.get(REGION, "us-east-1"), cap_usd, environ[LISTEN], environ.get(FIS_ROLE))
        account.check()
        return account

    def check(self) -> None:
        """Raises NotSetUp unless somebody is let in."""
        if boto3.Session().get_credentials() is None:
            raise NotSetUp("no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        try:
            self.ec2.describe_availability_zones()
        except (ClientError, BotoCoreError) as error:
            raise NotSetUp(f"AWS did not let us in: {error}; `aws sts get-caller-identity` must succeed") from error

    @property
    def config(self) -> str:
        """config.yaml of a controller that buys there alone."""
        aws = {"regions": [self.region], **({"fis_role": self.fis_role} if self.fis_role else {})}
        listen = {"host": self.listen, "port": 8443, "tls": "auto"}
        told = {"local": False, "aws": aws, "s3": {"region": self.region}, "listen": listen}
        return "".join(f"{name}: {json.dumps(value)}\n" for name, value in told.items())

    @property
    def ec2(self) -> Any:
        return self._client("ec2")

    @property
    def s3(self) -> Any:
        return self._client("s3")

    @property
    def labels(self) -> dict[str, str]:
        """What the task puts on its machines."""
        return {LABEL: self.run}

    def machines(self) -> list[dict[str, Any]]:
        """All of this run that EC2 still knows."""
        pages = self.ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": f"tag:{LABEL}", "Values": [self.run]}]
        )
        return [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]

    def living(self) -> list[str]:
        return [one["InstanceId"] for one in self.machines() if one["State"]["Name"] != "terminated"]

    def end_all(self) -> None:
        """Ask for the end of every machine of this run."""
        if ids := self.living():
            self.ec2.terminate_instances(InstanceIds=ids)

    def _client(self, service: str) -> Any:
        return boto3.client(service, region_name=self.region, endpoint_url=self.endpoint_url)


class Cap:
    """Looks every few seconds what this run has cost; at the cap, ends its machines, and goes on ending them.

    The cost is that of the on-demand price for as long as each machine was there, so it is never too low. At the end of
    the block no machine is left, whatever happened in it.
    """

    def __init__(self, account: Account, look_s: float = LOOK_S) -> None:
        self._account = account
        self._look_s = look_s
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
        """At most what the machines that were seen have cost."""
        return sum(self._seen.values())

    def look(self, now: float) -> None:
        """`now`: epoch seconds."""
        for one in self._account.machines():
            if one["State"]["Name"] != "terminated":
                hours = (now - one["LaunchTime"].timestamp()) / 3600
                price = on_demand_price(_dearest_like(one["InstanceType"]), self._account.region)
                self._seen[one["InstanceId"]] = max(self._seen.get(one["InstanceId"], 0.0), price * hours)
        if self.spent_usd() >= self._account.cap_usd:
            self.is_reached = True
        if self.is_reached:
            self._account.end_all()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            try:
                self.look(_now())
            except (ClientError, BotoCoreError) as error:
                print(f"the cap could not look: {error}")

    def _end_for_good(self) -> None:
        given_up_at = _now() + ENDING_WITHIN_S
        while self._account.living():
            assert _now() < given_up_at, f"still there, and billed: {self._account.living()}; end them by hand"
            self._account.end_all()
            threading.Event().wait(1.0)


def wander(controller: Controller, account: Account, cap: Cap, *, patience_s: float) -> dict[str, Any]:
    """The job that loses two machines, on this account: the first as EC2 takes them, if there is a role for it, and
    the second as if somebody had ended it. Returns the job. Raises CapReached."""
    wanderer = Wanderer(controller, account.s3, f"holdfast-test-{account.run}", patience_s, cap.check)
    job = wanderer.launch(infra="aws", instance_type=INSTANCE_TYPE, labels=account.labels)
    first = wanderer.begun(job, 1)
    if account.fis_role is not None:
        controller.holdfast("jobs", "preempt", job)
    else:
        account.end_all()
    second = wanderer.begun(job, 2)
    account.end_all()
    shown = wanderer.finished(job)
    notices = 0 if account.fis_role is None else 1
    wanderer.is_one_piece(job, shown["task_id"], durable=(first, second), notices=notices)
    assert shown["recovery_count"] == 2
    controller.until(lambda: not account.living(), "the end of every machine", patience_s)
    return shown


def empty(account: Account) -> None:
    """Remove this run's bucket."""
    bucket = f"holdfast-test-{account.run}"
    try:
        for key in keys_in(account.s3, bucket):
            account.s3.delete_object(Bucket=bucket, Key=key)
        account.s3.delete_bucket(Bucket=bucket)
    except account.s3.exceptions.NoSuchBucket:
        pass


def _now() -> float:
    return datetime.now().timestamp()  # noqa: TID251 - EC2 has the real clock


def _dearest_like(name: str) -> InstanceType:
    """The type itself; for one that the table lacks, the dearest of its size, or of all."""
    if name in TYPES:
        return TYPES[name]
    alike = [kind for kind in TYPES.values() if kind.name.partition(".")[2] == name.partition(".")[2]]
    return max(alike or TYPES.values(), key=lambda kind: kind.price_per_hour)
