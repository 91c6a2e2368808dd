"""What `make test-cloud` does on a real account, on an EC2 of the tests' own; and that it stops at its cap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import real_aws
from fake_ec2 import FakeEc2
from fake_ec2.fis import ROLE
from on_clouds import on_clouds
from real_aws import Account, Cap, CapReached, NotSetUp

PATIENCE_S = 90.0
WANTS = {real_aws.WANTED: "aws", real_aws.LISTEN: "10.0.0.5"}


def let_in(ec2: FakeEc2, monkeypatch: pytest.MonkeyPatch, **more: object) -> Account:
    for name, value in ec2.environ.items():
        monkeypatch.setenv(name, value)
    account = Account("us-east-1", 1.0, fis_role=ROLE, endpoint_url=ec2.url)
    return replace(account, **more)  # type: ignore[arg-type]


@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_clouds(tmp_path, "aws", regions=["us-east-1"]) as on_ec2:
        ec2 = on_ec2.fakes["aws"]
        ec2.faults.fis_notice_s = 30.0
        account = let_in(ec2, monkeypatch)
        with Cap(account, look_s=0.2) as cap:
            shown = real_aws.wander(on_ec2.controller, account, cap, patience_s=PATIENCE_S)
        assert not cap.is_reached
        assert cap.spent_usd() > shown["cost_usd"] * 0.9, "on demand costs more than spot"
        on_ec2.cost_is_the_bill(shown["job_id"])
        real_aws.empty(account)
        assert not [one for one in ec2.s3.list_buckets()["Buckets"] if account.run in one["Name"]]


def test_at_the_cap_every_machine_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_clouds(tmp_path, "aws", regions=["us-east-1"]) as on_ec2:
        ec2 = on_ec2.fakes["aws"]
        account = let_in(ec2, monkeypatch, cap_usd=1e-6)
        other = on_ec2.launch("another", "sleep infinity", resources=_one(labels={}))
        on_ec2.controller.until(ec2.living, "a machine")

        def spend() -> None:
            with Cap(account, look_s=0.2) as cap:
                try:
                    real_aws.wander(on_ec2.controller, account, cap, patience_s=PATIENCE_S)
                finally:
                    on_ec2.controller.holdfast("jobs", "cancel", other + 1, "--yes", "--no-graceful")

        with pytest.raises(CapReached, match="all was ended"):
            spend()
        assert not account.living()
        assert [one.tags["holdfast:job"] for one in ec2.living()] == [str(other)], "others' machines are left alone"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "set it to aws"),
        ({real_aws.WANTED: "gcp"}, "set it to aws"),
        ({real_aws.WANTED: "aws"}, "HOLDFAST_REAL_LISTEN is not set"),
        ({**WANTS, real_aws.CAP: "lots"}, "a number above 0"),
        ({**WANTS, real_aws.CAP: "-1"}, "a number above 0"),
        ({**WANTS, real_aws.CAP: "inf"}, "a number above 0"),
        (WANTS, "no AWS credentials"),
    ],
)
def test_without_what_it_needs_it_says_so(environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(NotSetUp, match=told):
        Account.of(environ)


def test_credentials_that_are_refused_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEc2() as ec2:
        ec2.faults.deny = "AuthFailure"
        with pytest.raises(NotSetUp, match="did not let us in"):
            let_in(ec2, monkeypatch).check()


def _one(**more: object) -> dict[str, object]:
    return {"infra": "aws", "instance_type": real_aws.INSTANCE_TYPE, "use_spot": True, **more}
