"""The Fault Injection Service, as far as spot machines are interrupted by it; requests are held to botocore's model.

Of an experiment it tells nothing afterwards. What it demands is from docs.aws.amazon.com/fis/latest/userguide:
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

from fake_ec2.answers import Answer

ACTION = "aws:ec2:send-spot-instance-interruptions"
ROLE = "arn:aws:iam::123456789012:role/perdure-fis"
_ARN = re.compile(r"arn:aws:ec2:(?P<region>[a-z0-9-]+):\d{12}:instance/(?P<id>.+)")
_MINUTES = range(2, 16)


class Fis:
    """`interrupt`: take a spot instance, by its id. `calls`: counts by "fis:StartExperiment"."""

    def __init__(self, interrupt: Callable[[str], None], calls: Callable[[str], None]) -> None:
        self._interrupt = interrupt
        self._count = calls
        self._templates: dict[str, dict[str, Any]] = {}
        self._started: dict[str, str] = {}
        self._numbers = itertools.count(1)

    @property
    def templates(self) -> int:
        """How many were made and not deleted."""
        return len(self._templates)

    def answer(self, region: str, method: str, path: str, body: bytes) -> Answer:
        found = _operation(method, path)
        if found is None:
            return _error(404, "ResourceNotFoundException", f"no operation is at {method} {path}")
        operation, placed = found
        self._count(f"fis:{operation.name}")
        asked = {**json.loads(body or b"{}"), **placed}
        unknown = sorted(asked.keys() - operation.input_shape.members.keys())
        report = ParamValidator().validate(asked, operation.input_shape)
        if unknown or report.has_errors():
            return _error(400, "ValidationException", report.generate_report() or f"unknown: {unknown}")
        match operation.name:
            case "CreateExperimentTemplate":
                return self._create(region, asked)
            case "StartExperiment":
                return self._start(asked)
            case "DeleteExperimentTemplate":
                template = self._templates.pop(asked["id"], None)
                return _told(experimentTemplate=template) if template else _unknown(asked["id"])
            case other:
                return _error(404, "ResourceNotFoundException", f"{other} is not played here")

    def _create(self, region: str, asked: dict[str, Any]) -> Answer:
        for problem in _problems(region, asked):
            return _error(400, "ValidationException", problem)
        id = f"EXT{next(self._numbers)}"
        self._templates[id] = {"id": id, **asked}
        return _told(experimentTemplate={"id": id})

    def _start(self, asked: dict[str, Any]) -> Answer:
        """As soon as it is asked for: it acts while nobody waits, and what it can not do nobody hears of."""
        template = self._templates.get(asked["experimentTemplateId"])
        if template is None:
            return _unknown(asked["experimentTemplateId"])
        if asked["clientToken"] not in self._started:
            self._started[asked["clientToken"]] = id = f"EXP{next(self._numbers)}"
            for target in template["targets"].values():
                for arn in target["resourceArns"]:
                    self._interrupt(_named(arn)[1])
        else:
            id = self._started[asked["clientToken"]]
        return _told(experiment={"id": id, "state": {"status": "initiating"}})


def _problems(region: str, asked: Mapping[str, Any]) -> Iterator[str]:
    """What the model does not tell."""
    targets = asked.get("targets", {})
    for name, action in asked["actions"].items():
        if action["actionId"] != ACTION:
            yield f"Action {name}: {action['actionId']} is not played here"
        minutes = re.fullmatch(r"PT(\d+)M", action.get("parameters", {}).get("durationBeforeInterruption", ""))
        if minutes is None or int(minutes[1]) not in _MINUTES:
            yield f"Action {name}: durationBeforeInterruption is PT2M to PT15M"
        if action.get("targets", {}).keys() != {"SpotInstances"} or action["targets"]["SpotInstances"] not in targets:
            yield f"Action {name}: its target SpotInstances is not defined"
    for name, target in targets.items():
        arns = target.get("resourceArns", [])
        if target["resourceType"] != "aws:ec2:spot-instance" or not 1 <= len(arns) <= 5:
            yield f"Target {name} is no choice of one to five spot instances"
        if any(_ARN.fullmatch(arn) is None or _named(arn)[0] != region for arn in arns):
            yield f"Target {name}: {arns} are no instances of {region}"
    if asked["roleArn"] != ROLE:
        yield "The role can not be assumed"


def _named(arn: str) -> tuple[str, str]:
    found = _ARN.fullmatch(arn)
    assert found is not None, arn
    return found["region"], found["id"]


def _operation(method: str, path: str) -> tuple[Any, dict[str, str]] | None:
    for name in _model().operation_names:
        operation = _model().operation_model(name)
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.http["requestUri"])
        if operation.http["method"] == method and (found := re.fullmatch(pattern, path)):
            return operation, found.groupdict()
    return None


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("fis")


def _told(**members: Any) -> Answer:
    return Answer(200, json.dumps(members).encode(), "application/json")


def _unknown(id: str) -> Answer:
    return _error(404, "ResourceNotFoundException", f"Experiment template {id} does not exist")


def _error(status: int, code: str, message: str) -> Answer:
    return Answer(status, json.dumps({"__type": code, "message": message}).encode(), "application/json")
