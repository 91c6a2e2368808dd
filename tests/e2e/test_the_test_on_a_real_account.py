"""What `make test-cloud` does on a real account, on clouds of the tests' own; and that it stops at its cap."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import azurite
import real_clouds
from accounts import KINDS
from azurite import Azurite
from fake_azure import FakeAzure
from fake_ec2 import FakeEc2
from fake_gce import FakeGce
from fake_gcs import FakeGcs
from on_clouds import OnClouds, on_clouds
from real_clouds import Account, Cap, CapReached, NotSetUp

pytestmark = pytest.mark.long

PATIENCE_S = 90.0
WANTS = {real_clouds.WANTED: "aws", real_clouds.LISTEN: "10.0.0.5"}


@dataclass(frozen=True)
class Place:
    """A cloud of the tests' own, and its account as the test on a real one has it."""

    on: OnClouds
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
        on = stack.enter_context(on_clouds(tmp_path, cloud, config=config, environ=environ, **settings))
        for name, value in {**on.fakes[cloud].environ, **environ}.items():
            monkeypatch.setenv(name, value)
        sections = yaml.safe_load((tmp_path / "home" / "config.yaml").read_text())
        yield Place(on, lambda cap_usd: Account(cloud, region, cap_usd, sections))


@pytest.mark.fuse
@pytest.mark.timeout(400)
def test_it_passes(place: Place) -> None:
    account = place.account(1.0)
    fake = place.on.fakes[account.cloud]
    if isinstance(fake, FakeEc2):
        fake.faults.fis_notice_s = 30.0
    account.check()
    assert account.is_rehearsed
    with Cap(account, look_s=0.2) as cap:
        shown = real_clouds.wander(place.on.controller, account, cap, patience_s=PATIENCE_S)
    assert not cap.is_reached
    assert cap.spent_usd() > shown["cost_usd"] * 0.9, "on demand costs more than spot"
    place.on.cost_is_the_bill(shown["job_id"], within_s=20)
    assert account.provider.keys(account.bucket)
    account.empty()
    assert account.provider.keys(account.bucket) == []


@pytest.mark.timeout(400)
def test_at_the_cap_every_machine_ends(place: Place) -> None:
    account, controller = place.account(1e-6), place.on.controller
    fake = place.on.fakes[account.cloud]
    one = {"infra": account.cloud, "instance_type": account.kind.instance_type, "use_spot": True}
    other = place.on.launch("another", "sleep infinity", resources=one)
    controller.until(fake.living, "a machine")

    def spend() -> None:
        with Cap(account, look_s=0.2) as cap:
            try:
                real_clouds.wander(controller, account, cap, patience_s=PATIENCE_S)
            finally:
                controller.perdure("jobs", "cancel", other + 1, "--yes", "--no-graceful")

    with pytest.raises(CapReached, match="all was ended"):
        spend()
    assert not account.machines()
    jobs = {one.tags.get("perdure:job") or one.tags["perdure-job"] for one in fake.living()}
    assert jobs == {str(other)}, "others' machines are left alone"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "set it to aws, gcp, azure"),
        ({real_clouds.WANTED: "oracle"}, "set it to aws, gcp, azure"),
        ({real_clouds.WANTED: "aws"}, "PERDURE_REAL_LISTEN is not set"),
        ({**WANTS, real_clouds.CAP: "lots"}, "a number above 0"),
        ({**WANTS, real_clouds.CAP: "-1"}, "a number above 0"),
        ({**WANTS, real_clouds.CAP: "inf"}, "a number above 0"),
        (WANTS, "no AWS credentials"),
        ({**WANTS, real_clouds.WANTED: "gcp"}, "no Google credentials"),
        ({**WANTS, real_clouds.WANTED: "azure"}, "AZURE_STORAGE_ACCOUNT is not set"),
    ],
)
def test_without_what_it_needs_it_says_so(environ: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(NotSetUp, match=told):
        Account.of(environ)


@pytest.mark.parametrize(
    ("cloud", "fake", "code"),
    [("aws", FakeEc2, "AuthFailure"), ("gcp", FakeGce, "forbidden"), ("azure", FakeAzure, "AuthorizationFailed")],
)
def test_credentials_that_are_refused_are_told(
    cloud: str, fake: type[FakeEc2 | FakeGce | FakeAzure], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake(regions=(KINDS[cloud].region,)) as one:
        for name, value in {**one.environ, "AZURE_STORAGE_ACCOUNT": "acme"}.items():
            monkeypatch.setenv(name, value)
        one.faults.deny = code
        sections = {**KINDS[cloud].sections, **yaml.safe_load(one.config)}
        with pytest.raises(NotSetUp, match=f"{cloud} did not let us in"):
            Account(cloud, KINDS[cloud].region, 1.0, sections).check()
