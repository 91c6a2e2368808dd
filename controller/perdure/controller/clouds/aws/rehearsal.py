"""A spot interruption on demand, through the Fault Injection Service: `aws: {fis_role: arn:aws:iam::…:role/…}`.

EC2 alone says how long the notice is: two minutes, the least that FIS takes. The machine gets a rebalance
recommendation with it. FIS acts under the role and after it has answered: what it could not do, its console tells.
docs.aws.amazon.com/fis/latest/userguide/fis-actions-reference.html#send-spot-instance-interruptions
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

NOTICE = "PT2M"
ACTION = "aws:ec2:send-spot-instance-interruptions"


def instance_arn(role: str, region: str, instance: str) -> str:
    """The instance's name in full: it is in the partition and the account of the role."""
    _, partition, _, _, account, _ = role.split(":", 5)
    return f"arn:{partition}:ec2:{region}:{account}:instance/{instance}"


def template(role: str, arn: str, token: str) -> dict[str, Any]:
    """The parameters of CreateExperimentTemplate: this one machine, and nothing to wait for."""
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
    """Begin it. The template is deleted again, which leaves an experiment that has begun alone."""
    token = uuid.uuid4().hex
    asked = template(role, instance_arn(role, region, instance), token)
    id = fis.create_experiment_template(**asked)["experimentTemplate"]["id"]
    try:
        fis.start_experiment(clientToken=token, experimentTemplateId=id)
    finally:
        with contextlib.suppress(Exception):  # it costs nothing, and the outcome is that of the start
            fis.delete_experiment_template(id=id)
