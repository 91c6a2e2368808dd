"""perdure check, of a real daemon with an account at each of three clouds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controllers import running_controller
from fake_azure import FakeAzure
from fake_ec2 import FakeEc2
from fake_gce import FakeGce


@pytest.mark.slow
def test_three_accounts_are_looked_through(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with FakeEc2() as ec2, FakeGce() as gce, FakeAzure() as azure:
        (home / "config.yaml").write_text(f"{ec2.config}{gce.config}{azure.config}")
        with running_controller(home, environ={**ec2.environ, **gce.environ, **azure.environ}) as controller:
            ec2.faults.quotas = {(region, "L-C4BD4855"): 0 for region in ec2.regions}
            gce.faults.forbid = {"compute.instances.create"}
            azure.faults.quotas = {(region, "lowPriorityCores"): 0 for region in azure.regions}
            told = controller.perdure("check", "aws", "gcp", "azure", check=False)
            assert told.returncode == 1, told
            assert told.stdout.count("usable\n") == 3
            assert "gcp: not usable\n" in told.stdout
            for line in (
                "limits quotas: spot vCPUs of P5 types: nothing left in any of 2 regions",
                "fails permissions: compute.instances.create is missing: machines are bought with it",
                "to do: give it the role of deploy/iam/gcp-controller.yaml in this project",
                "limits quotas: spot vCPUs of all sizes: nothing left in any of 2 regions",
            ):
                assert f"  {line}\n" in told.stdout
            gce.faults.forbid = set()
            well = json.loads(controller.perdure("check", "-o", "json").stdout)
            assert {one["name"] for one in well if one["usable"]} == {"aws", "azure", "gcp", "local"}
            controller.perdure("check", "-v")
        assert not [*ec2.bought(), *gce.bought(), *azure.bought()]
