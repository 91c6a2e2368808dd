"""Checks requests against botocore's models: names, types, required fields, and enumerated values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator
from moto.core.model import ServiceModel
from moto.core.parse import EC2QueryParser, QueryParser


class Invalid(Exception):
    """A request that EC2 would reject. `code` is EC2's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read(action: str, form: Mapping[str, str], *, service: str = "ec2") -> dict[str, Any]:
    """Return the parameters of a query as boto3 names them. Raises Invalid."""
    operation = _operation(service, action)
    parser = EC2QueryParser if service == "ec2" else QueryParser
    parsed = parser(operation, map_type=dict).parse({"values": dict(form)})  # type: ignore[arg-type]
    parameters = {name: value for name, value in (parsed or {}).items() if value is not None}
    if operation.input_shape is not None:
        _check(operation.input_shape, parameters, action)
    written = create_serializer("ec2" if service == "ec2" else "query").serialize_to_request(parameters, operation)[
        "body"
    ]
    unknown = sorted(form.keys() - written.keys() - {"Action", "Version"})
    if unknown:
        raise Invalid("UnknownParameter", f"The parameter {unknown[0]} is not recognized")
    return parameters


def read_json(action: str, body: bytes, *, service: str) -> dict[str, Any]:
    """Return the parameters of a call in JSON. Raises Invalid."""
    parameters: dict[str, Any] = json.loads(body)
    _check(_operation(service, action).input_shape, parameters, action)
    return parameters


def _check(shape: Any, parameters: dict[str, Any], action: str) -> None:
    report = ParamValidator().validate(parameters, shape)
    if report.has_errors():
        raise Invalid("InvalidParameterValue", report.generate_report())
    for name, value, allowed in _invalid_values(shape, parameters, action):
        raise Invalid("InvalidParameterValue", f"Invalid value {value!r} for {name}: one of {', '.join(allowed)}")


def _operation(service: str, action: str) -> Any:
    if action not in _model(service).operation_names:
        raise Invalid("InvalidAction", f"The action {action} is not valid for this web service")
    return _model(service).operation_model(action)


@cache
def _model(service: str) -> Any:
    model = botocore.session.get_session().get_service_model(service)
    # moto's parser of queries needs a model of its own class.
    return model if service == "ec2" else ServiceModel(model._service_description, service)


def _invalid_values(shape: Any, value: Any, name: str) -> Iterator[tuple[str, Any, list[str]]]:
    if shape.type_name == "structure":
        for member, inner in value.items():
            yield from _invalid_values(shape.members[member], inner, member)
    elif shape.type_name == "list":
        for inner in value:
            yield from _invalid_values(shape.member, inner, name)
    # botocore's list lacks the newest instance types.
    elif (allowed := shape.metadata.get("enum")) and value not in allowed and shape.name != "InstanceType":
        yield name, value, allowed
