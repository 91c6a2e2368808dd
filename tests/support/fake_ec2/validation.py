"""Checks requests against botocore's own model of EC2: names, types, what is required, and enumerated values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator
from moto.core.parse import EC2QueryParser


class Invalid(Exception):
    """A request that EC2 would not take. `code` is EC2's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read(action: str, form: Mapping[str, str]) -> dict[str, Any]:
    """The request's parameters as boto3 names them. Raises Invalid."""
    if action not in _model().operation_names:
        raise Invalid("InvalidAction", f"The action {action} is not valid for this web service")
    operation = _model().operation_model(action)
    parsed = EC2QueryParser(operation, map_type=dict).parse({"values": dict(form)})  # type: ignore[arg-type]
    parameters = {name: value for name, value in parsed.items() if value is not None}
    report = ParamValidator().validate(parameters, operation.input_shape)
    if report.has_errors():
        raise Invalid("InvalidParameterValue", report.generate_report())
    for name, value, allowed in _odd_values(operation.input_shape, parameters, action):
        raise Invalid("InvalidParameterValue", f"Invalid value {value!r} for {name}: one of {', '.join(allowed)}")
    written = create_serializer("ec2").serialize_to_request(parameters, operation)["body"]
    unknown = sorted(form.keys() - written.keys() - {"Action", "Version"})
    if unknown:
        raise Invalid("UnknownParameter", f"The parameter {unknown[0]} is not recognized")
    return parameters


@cache
def _model() -> Any:
    return botocore.session.get_session().get_service_model("ec2")


def _odd_values(shape: Any, value: Any, name: str) -> Iterator[tuple[str, Any, list[str]]]:
    if shape.type_name == "structure":
        for member, inner in value.items():
            yield from _odd_values(shape.members[member], inner, member)
    elif shape.type_name == "list":
        for inner in value:
            yield from _odd_values(shape.member, inner, name)
    # botocore's list of instance types is always a little behind.
    elif (allowed := shape.metadata.get("enum")) and value not in allowed and shape.name != "InstanceType":
        yield name, value, allowed
