"""The prices that one daemon fetched from EC2 are used by the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fakes.ec2 import FakeEc2
from support.helpers.controllers import Controller, running_controller

pytestmark = pytest.mark.long


def test_prices__survive_a_daemon_restart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with FakeEc2() as ec2:
        (home / "config.yaml").write_text(ec2.config)
        with running_controller(home, environ=ec2.environ) as first:
            first.until(lambda: all(row["priced_at"] for row in first.client.gpus(cloud="aws")), "what EC2 sells")
            reported = rows(first)
            assert "Prices: aws fetched" in first.perdure("gpus", "L4", "--infra", "aws").stdout
        assert {"p5.48xlarge", "gr6.4xlarge"} <= {row["instance_type"] for row in reported}
        ec2.faults.deny = "AuthFailure"  # from now on EC2 rejects every call
        with running_controller(home, environ=ec2.environ) as second:
            assert rows(second) == reported
            assert all(row["priced_at"] for row in second.client.gpus(cloud="aws"))
        assert not (home / "aws").exists(), "no file is kept"


def rows(controller: Controller) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "priced_at"} for row in controller.client.gpus()]
