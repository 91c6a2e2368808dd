"""The Fault Injection Service, with interruptions of spot machines only. botocore's model checks its requests.

The state of an experiment cannot be queried. The requirements are from docs.aws.amazon.com/fis/latest/userguide:
actions-and-targets, fis-actions-reference.html#send-spot-instance-interruptions.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from support.fakes.ec2.responses import Answer

ACTION = "aws:ec2:send-spot-instance-interruptions"
ROLE = "arn:aws:iam::123456789012:role/perdure-fis"
_ARN = re.compile(r"arn:aws:ec2:(?P<region>[a-z0-9-]+):\d{12}:instance/(?P<id>.+)")
_MINUTES = range(2, 16)


class Fis:
    """`interrupt` takes back a spot instance by its id. `count_call` counts a call, such as "fis:StartExperiment"."""

    def __init__(self, interrupt: Callable[[str], None], count_call: Callable[[str], None]) -> None:
        self._interrupt = interrupt
        self._count_call = count_call
        self._templates: dict[str, dict[str, Any]] = {}
        self._started: dict[str, str] = {}  # client token → id of the experiment
        self._numbers = itertools.count(1)

    @property
    def templates(self) -> int:
        """How many templates exist."""
        return len(self._templates)

    def answer(self, region: str, method: str, path: str, body: bytes) -> Answer:
        route = _operation(method, path)
        if route is None:
            return _error(404, "ResourceNotFoundException", f"no operation is at {method} {path}")
        operation, path_parameters = route
        self._count_call(f"fis:{operation.name}")
        parameters = {**json.loads(body or b"{}"), **path_parameters}
        unknown = sorted(parameters.keys() - operation.input_shape.members.keys())
        report = ParamValidator().validate(parameters, operation.input_shape)
        if unknown or report.has_errors():
            return _error(400, "ValidationException", report.generate_report() or f"unknown: {unknown}")
        match operation.name:
            case "CreateExperimentTemplate":
                return self._create(region, parameters)
            case "StartExperiment":
                return self._start(parameters)
            case "DeleteExperimentTemplate":
                template = self._templates.pop(parameters["id"], None)
                return _description(experimentTemplate=template) if template else _unknown(parameters["id"])
            case other:
                return _error(404, "ResourceNotFoundException", f"{other} is not supported by this fake")

    def _create(self, region: str, parameters: dict[str, Any]) -> Answer:
        for problem in _problems(region, parameters):
            return _error(400, "ValidationException", problem)
        id = f"EXT{next(self._numbers)}"
        self._templates[id] = {"id": id, **parameters}
        return _description(experimentTemplate={"id": id})

    def _start(self, parameters: dict[str, Any]) -> Answer:
        """Start the experiment, which acts at once. Its errors are not reported."""
        template = self._templates.get(parameters["experimentTemplateId"])
        if template is None:
            return _unknown(parameters["experimentTemplateId"])
        if parameters["clientToken"] not in self._started:
            self._started[parameters["clientToken"]] = id = f"EXP{next(self._numbers)}"
            for target in template["targets"].values():
                for arn in target["resourceArns"]:
                    self._interrupt(_region_and_id(arn)[1])
        else:
            id = self._started[parameters["clientToken"]]
        return _description(experiment={"id": id, "state": {"status": "initiating"}})


def _problems(region: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Violations of requirements that the model does not express."""
    targets = parameters.get("targets", {})
    for name, action in parameters["actions"].items():
        if action["actionId"] != ACTION:
            yield f"Action {name}: {action['actionId']} is not supported by this fake"
        minutes = re.fullmatch(r"PT(\d+)M", action.get("parameters", {}).get("durationBeforeInterruption", ""))
        if minutes is None or int(minutes[1]) not in _MINUTES:
            yield f"Action {name}: durationBeforeInterruption is PT2M to PT15M"
        if action.get("targets", {}).keys() != {"SpotInstances"} or action["targets"]["SpotInstances"] not in targets:
            yield f"Action {name}: its target SpotInstances is not defined"
    for name, target in targets.items():
        arns = target.get("resourceArns", [])
        if target["resourceType"] != "aws:ec2:spot-instance" or not 1 <= len(arns) <= 5:
            yield f"Target {name} is not a choice of one to five spot instances"
        if any(_ARN.fullmatch(arn) is None or _region_and_id(arn)[0] != region for arn in arns):
            yield f"Target {name}: {arns} are no instances of {region}"
    if parameters["roleArn"] != ROLE:
        yield "The role cannot be assumed"


def _region_and_id(arn: str) -> tuple[str, str]:
    parts = _ARN.fullmatch(arn)
    assert parts is not None, arn
    return parts["region"], parts["id"]


def _operation(method: str, path: str) -> tuple[Any, dict[str, str]] | None:
    for name in _model().operation_names:
        operation = _model().operation_model(name)
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.http["requestUri"])
        if operation.http["method"] == method and (match := re.fullmatch(pattern, path)):
            return operation, match.groupdict()
    return None


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("fis")


def _description(**members: Any) -> Answer:
    return Answer(200, json.dumps(members).encode(), "application/json")


def _unknown(id: str) -> Answer:
    return _error(404, "ResourceNotFoundException", f"Experiment template {id} does not exist")


def _error(status: int, code: str, message: str) -> Answer:
    return Answer(status, json.dumps({"__type": code, "message": message}).encode(), "application/json")
