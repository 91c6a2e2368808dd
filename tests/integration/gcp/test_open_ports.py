"""Ports of clusters on Compute Engine: a firewall rule for the tag of their machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds.base.protocol import LaunchRequest, OpenPorts
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.gcp.iam.permissions import required_permissions
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.recovery.reasons import Reason
from support.fakes.gce import FakeGce

ROLE = Path(__file__).parents[3] / "deploy" / "iam" / "gcp-controller.yaml"
TAGS = "compute.instances.setTags"
PORTS = OpenPorts("perdure-abcdef01-cluster-7", ((8080, 8080),))


def test_role__allows_machines_with_the_tag_of_their_ports(
    gce: FakeGce, cloud: GcpCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    gce.faults.operation_s = 0.01  # it waits for the operations on rules
    gce.faults.forbid = {TAGS} - set(yaml.safe_load(ROLE.read_text())["includedPermissions"])
    assert cloud.launch(request_of(open_ports=PORTS))


def test_launch__with_an_older_role_opens_no_ports_and_names_the_permission(
    gce: FakeGce, cloud: GcpCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    gce.faults.operation_s = 0.01
    gce.faults.forbid = {TAGS}
    with pytest.raises(Exception, match=TAGS) as caught:
        cloud.launch(request_of(open_ports=PORTS))
    assert cloud.classify(caught.value).reason is Reason.BAD_CREDENTIALS
    assert cloud.launch(request_of("t2")), "a launch without ports needs no permission for tags"
    (needed,) = (one for one in required_permissions(GcpSettings()) if one.name == TAGS)
    assert not needed.is_required
