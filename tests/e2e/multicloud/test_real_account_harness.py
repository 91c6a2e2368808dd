"""The test of `make test-cloud` on fake clouds; it stops at its spending cap."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from support.fakes import azurite
from support.fakes.azure import FakeAzure
from support.fakes.azurite import Azurite
from support.fakes.ec2 import FakeEc2
from support.fakes.gce import FakeGce
from support.fakes.gcs import FakeGcs
from support.worlds import real_account
from support.worlds.account_providers import KINDS
from support.worlds.jobs_on_clouds import JobsOnClouds, running_jobs_on_clouds
from support.worlds.real_account import Account, Cap, CapReached, NotSetUp

pytestmark = pytest.mark.long

TIMEOUT_S = 90.0
TARGETS = {real_account.WANTED: "aws", real_account.LISTEN: "10.0.0.5"}


@dataclass(frozen=True)
class Place:
    """A fake cloud, and its account as the real-account test sees it."""

    on: JobsOnClouds
    account: Callable[[float], Account]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    cloud, region = request.param, KINDS[request.param].region
    with contextlib.ExitStack() as stack:
        buckets, environ = {}, {}
        if cloud == "gcp":
            gcs = stack.enter_context(FakeGcs(tmp_path))
            buckets = {"gcs": {"endpoint": gcs.url, "credentials": str(gcs.key_file)}}
        if cloud == "azure":
            if problem := azurite.problem():
                pytest.skip(problem)
            blobs = stack.enter_context(Azurite(tmp_path / "azurite"))
            buckets, environ = {"azure_blob": {"endpoint": blobs.endpoint}}, dict(blobs.environ)
        config = "".join(f"{name}: {json.dumps(section)}\n" for name, section in buckets.items())
        settings = {"regions": [region], **KINDS[cloud].more}
        on = stack.enter_context(running_jobs_on_clouds(tmp_path, cloud, config=config, environ=environ, **settings))
        for name, value in {**on.fakes[cloud].environ, **environ}.items():
            monkeypatch.setenv(name, value)
        sections = yaml.safe_load((tmp_path / "home" / "config.yaml").read_text())
        yield Place(on, lambda cap_usd: Account(cloud, region, cap_usd, sections))


@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_real_account_test__passes(place: Place) -> None:
    account = place.account(1.0)
    fake = place.on.fakes[account.cloud]
    if isinstance(fake, FakeEc2):
        fake.faults.fis_notice_s = 30.0
    account.check()
    assert account.can_interrupt
    with Cap(account, poll_s=0.2) as cap:
        shown = real_account.run_migrating_job(place.on.controller, account, cap, timeout_s=TIMEOUT_S)
    assert not cap.is_reached
    assert cap.spent_usd() > shown["cost_usd"] * 0.9, "on demand costs more than spot"
    place.on.check_cost_matches_bill(shown["job_id"], within_s=20)
    assert account.provider.keys(account.bucket)
    account.empty()
    assert account.provider.keys(account.bucket) == []


@pytest.mark.timeout(400)
def test_spending_cap__ends_every_machine(place: Place) -> None:
    account, controller = place.account(1e-6), place.on.controller
    fake = place.on.fakes[account.cloud]
    one = {"infra": account.cloud, "instance_type": account.kind.instance_type, "use_spot": True}
    other = place.on.launch("another", "sleep infinity", resources=one)
    controller.until(fake.living, "a machine")

    def spend() -> None:
        with Cap(account, poll_s=0.2) as cap:
            try:
                real_account.run_migrating_job(controller, account, cap, timeout_s=TIMEOUT_S)
            finally:
                controller.perdure("jobs", "cancel", other + 1, "--yes", "--no-graceful")

    with pytest.raises(CapReached, match="all was ended"):
        spend()
    assert not account.machines()
    jobs = {one.tags.get("perdure:job") or one.tags["perdure-job"] for one in fake.living()}
    assert jobs == {str(other)}, "others' machines are left alone"


@pytest.mark.parametrize(
    ("environ", "reported"),
    [
        ({}, "set it to aws, gcp, azure"),
        ({real_account.WANTED: "oracle"}, "set it to aws, gcp, azure"),
        ({real_account.WANTED: "aws"}, "PERDURE_REAL_LISTEN is not set"),
        ({**TARGETS, real_account.CAP: "lots"}, "a number above 0"),
        ({**TARGETS, real_account.CAP: "-1"}, "a number above 0"),
        ({**TARGETS, real_account.CAP: "inf"}, "a number above 0"),
        (TARGETS, "no AWS credentials"),
        ({**TARGETS, real_account.WANTED: "gcp"}, "no Google credentials"),
        ({**TARGETS, real_account.WANTED: "azure"}, "AZURE_STORAGE_ACCOUNT is not set"),
    ],
)
def test_missing_configuration__is_reported(
    environ: dict[str, str], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(NotSetUp, match=reported):
        Account.of(environ)


@pytest.mark.parametrize(
    ("cloud", "fake", "code"),
    [("aws", FakeEc2, "AuthFailure"), ("gcp", FakeGce, "forbidden"), ("azure", FakeAzure, "AuthorizationFailed")],
)
def test_rejected_credentials__are_reported(
    cloud: str, fake: type[FakeEc2 | FakeGce | FakeAzure], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake(regions=(KINDS[cloud].region,)) as one:
        for name, value in {**one.environ, "AZURE_STORAGE_ACCOUNT": "acme"}.items():
            monkeypatch.setenv(name, value)
        one.faults.deny = code
        sections = {**KINDS[cloud].sections, **yaml.safe_load(one.config)}
        with pytest.raises(NotSetUp, match=f"{cloud} did not let us in"):
            Account(cloud, KINDS[cloud].region, 1.0, sections).check()
