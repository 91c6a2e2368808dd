"""`perdure check` of a real daemon with accounts at three clouds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.fakes.azure import FakeAzure
from support.fakes.ec2 import FakeEc2
from support.fakes.gce import FakeGce
from support.helpers.controllers import running_controller


@pytest.mark.slow
def test_check_command__checks_three_accounts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with FakeEc2() as ec2, FakeGce() as gce, FakeAzure() as azure:
        (home / "config.yaml").write_text(f"{ec2.config}{gce.config}{azure.config}")
        with running_controller(home, environ={**ec2.environ, **gce.environ, **azure.environ}) as controller:
            ec2.faults.quotas = {(region, "L-C4BD4855"): 0 for region in ec2.regions}
            gce.faults.forbid = {"compute.instances.create"}
            azure.faults.quotas = {(region, "lowPriorityCores"): 0 for region in azure.regions}
            reported = controller.perdure("check", "aws", "gcp", "azure", check=False)
            assert reported.returncode == 1, reported
            assert reported.stdout.count("usable\n") == 3
            assert "gcp: not usable\n" in reported.stdout
            for line in (
                "warning quotas: spot vCPUs of P5 types: nothing left in any of 2 regions",
                "error permissions: compute.instances.create is missing: it launches machines",
                "fix: give it the role of deploy/iam/gcp-controller.yaml in this project",
                "warning quotas: spot vCPUs of all sizes: nothing left in any of 2 regions",
            ):
                assert f"  {line}\n" in reported.stdout
            gce.faults.forbid = set()
            well = json.loads(controller.perdure("check", "-o", "json").stdout)
            assert {one["name"] for one in well if one["usable"]} == {"aws", "azure", "gcp", "local"}
            controller.perdure("check", "-v")
        assert not [*ec2.purchases(), *gce.purchases(), *azure.purchases()]
