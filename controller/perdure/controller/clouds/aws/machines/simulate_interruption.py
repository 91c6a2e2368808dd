"""Simulates a spot interruption with the Fault Injection Service (FIS): `aws: {fis_role: arn:aws:iam::…:role/…}`.

The notice is two minutes, FIS's minimum, and comes with a rebalance recommendation. FIS acts under the role after it
has responded: it reports failures only in its console.
docs.aws.amazon.com/fis/latest/userguide/fis-actions-reference.html#send-spot-instance-interruptions
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

NOTICE = "PT2M"
ACTION = "aws:ec2:send-spot-instance-interruptions"


def instance_arn(role: str, region: str, instance: str) -> str:
    """The instance's ARN, which has the partition and the account of the role."""
    _, partition, _, _, account, _ = role.split(":", 5)
    return f"arn:{partition}:ec2:{region}:{account}:instance/{instance}"


def template(role: str, arn: str, token: str) -> dict[str, Any]:
    """The parameters of CreateExperimentTemplate for this one machine, without stop conditions."""
    interrupt = {
        "actionId": ACTION,
        "parameters": {"durationBeforeInterruption": NOTICE},
        "targets": {"SpotInstances": "node"},
    }
    return {
        "clientToken": token,
        "description": "perdure jobs preempt",
        "stopConditions": [{"source": "none"}],
        "targets": {"node": {"resourceType": "aws:ec2:spot-instance", "resourceArns": [arn], "selectionMode": "ALL"}},
        "actions": {"interrupt": interrupt},
        "roleArn": role,
    }


def interrupt(fis: Any, role: str, region: str, instance: str) -> None:
    """Start the experiment and delete its template, which does not affect a running experiment."""
    token = uuid.uuid4().hex
    parameters = template(role, instance_arn(role, region, instance), token)
    id = fis.create_experiment_template(**parameters)["experimentTemplate"]["id"]
    try:
        fis.start_experiment(clientToken=token, experimentTemplateId=id)
    finally:
        with contextlib.suppress(Exception):  # a template that is left costs nothing
            fis.delete_experiment_template(id=id)
