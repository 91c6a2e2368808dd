"""Starts machines again that were stopped, as those of another attempt: with other tags and other user data.

The machine's own `boot.py` asks for the user data at each boot.
docs.aws.amazon.com/AWSEC2/latest/UserGuide/Stop_Start.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.controller.clouds.aws import faults
from perdure.controller.clouds.aws.machines import launch_request
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import LaunchRequest

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def start(ec2: EC2Client, request: LaunchRequest, ids: Sequence[str]) -> None:
    """Start all of these machines, which are stopped, or none. EC2 itself starts all that one call names, or none.

    The tags come first, so that a running machine always shows which attempt it belongs to.
    """
    tags = [{"Key": key, "Value": value} for key, value in launch_request.tags_of(request).items()]
    ec2.create_tags(Resources=list(ids), Tags=tags)  # type: ignore[arg-type]
    program = launch_request.user_data(request).encode()  # boto3 encodes it
    try:
        for id in ids:
            ec2.modify_instance_attribute(InstanceId=id, UserData={"Value": program})
        ec2.start_instances(InstanceIds=list(ids))
    except Exception as error:
        if faults.code_of(error) != "IncorrectInstanceState":
            raise
        raise CloudRejected("InstanceStillStopping", str(error)) from error
