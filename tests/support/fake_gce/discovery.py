"""Google's own description of compute v1, and what is held against it: requests and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import googleapiclient


class Invalid(Exception):
    """A call that is refused. `reason` is Google's."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """`method`: as the document names it. `parameters`: of the path and the query."""

    method: str
    parameters: dict[str, str]
    body: dict[str, Any]


def read(http_method: str, path: str, query: Mapping[str, str], body: bytes) -> Call:
    """The call that this is. Raises Invalid."""
    fitting = ((found, method) for pattern, method in _routes()[http_method] if (found := pattern.fullmatch(path)))
    if (route := next(fitting, None)) is None:
        raise Invalid(404, "notFound", f"{http_method} {path} is none of the API's")
    found, method = route
    parameters = {**found.groupdict(), **query}
    _check_parameters(method, parameters)
    given = json.loads(body) if body else {}
    if "request" in method:
        check(method["request"]["$ref"], given)
    elif given:
        raise Invalid(400, "invalid", f"{method['id']} takes no body")
    return Call(method["id"].removeprefix("compute."), parameters, given)


def check_answer(call: Call, answer: Mapping[str, Any]) -> None:
    """Raises Invalid if Google could not have said this."""
    method = next(m for routes in _routes().values() for _, m in routes if m["id"] == f"compute.{call.method}")
    check(method["response"]["$ref"], answer)


def check(schema: str, value: Any) -> None:
    """Raises Invalid, which names the field."""
    for where, what in _problems({"$ref": schema}, value, schema):
        raise Invalid(400, "invalid", f"Invalid value for field '{where}': {what}")


def _check_parameters(method: Mapping[str, Any], given: Mapping[str, str]) -> None:
    known = {**_document()["parameters"], **method["parameters"]}
    for name, value in given.items():
        if name not in known:
            raise Invalid(400, "invalidParameter", f"unknown parameter {name!r} of {method['id']}")
        for _, what in _problems(known[name], _of_query(known[name], value), name):
            raise Invalid(400, "invalidParameter", f"Invalid value for {name!r}: {what}")
    for name, told in method["parameters"].items():
        if told.get("required") and name not in given:
            raise Invalid(400, "required", f"Required parameter: {name}")


def _of_query(told: Mapping[str, Any], text: str) -> Any:
    match told["type"]:
        case "integer":
            return int(text)
        case "boolean":
            return text == "true"
        case _:
            return text


_KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": float}


def _problems(told: Mapping[str, Any], value: Any, where: str) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it)"""
    if "$ref" in told:
        told = _document()["schemas"][told["$ref"]]
    kind = _KINDS.get(told.get("type", "any"), object)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield where, f"{value!r} is no {told['type']}"
    elif kind is dict:
        for name, inner in value.items():
            known = told.get("properties", {}).get(name) or told.get("additionalProperties")
            if known is None:
                yield f"{where}.{name}", "there is no such field"
            else:
                yield from _problems(known, inner, f"{where}.{name}")
    elif kind is list:
        for index, inner in enumerate(value):
            yield from _problems(told["items"], inner, f"{where}[{index}]")
    elif kind is str:
        yield from ((where, what) for what in _wrong_text(told, value))


def _wrong_text(told: Mapping[str, Any], value: str) -> Iterator[str]:
    if "enum" in told and value not in told["enum"]:
        yield f"{value!r} is none of {', '.join(told['enum'])}"
    if "pattern" in told and not re.fullmatch(told["pattern"], value):
        yield f"{value!r} does not match {told['pattern']}"
    if told.get("format") in ("int64", "uint64") and not re.fullmatch(r"-?\d+", value):
        yield f"{value!r} is no number"


@cache
def _document() -> dict[str, Any]:
    folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    document: dict[str, Any] = json.loads((folder / "compute.v1.json").read_text())
    return document


@cache
def _routes() -> dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]]:
    """HTTP method → every method of the API that goes by it, the longest path first."""
    found: dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]] = {}
    for resource in _document()["resources"].values():
        for method in resource.get("methods", {}).values():
            words = re.split(r"\{\+?(\w+)\}", method["path"])
            pattern = "".join(
                f"(?P<{word}>[^/]+)" if odd else re.escape(word) for odd, word in zip([0, 1] * 99, words, strict=False)
            )
            found.setdefault(method["httpMethod"], []).append((re.compile(f"/compute/v1/{pattern}"), method))
    for routes in found.values():
        routes.sort(key=lambda route: -len(route[0].pattern))
    return found
