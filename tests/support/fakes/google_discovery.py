"""Google's descriptions of its APIs, and checks of requests and responses against them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import googleapiclient

_KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": float}


class Invalid(Exception):
    """A call that Google would reject. `reason` is Google's."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Call:
    """A parsed request."""

    method: str  # as the document names it
    parameters: dict[str, str]  # of the path and the query
    body: dict[str, Any]


class Discovery:
    """The discovery document of one version of one API, such as `Discovery("compute", "v1")`."""

    def __init__(self, api: str, version: str) -> None:
        self.api = api
        self._file = f"{api}.{version}.json"

    def read(self, http_method: str, path: str, query: Mapping[str, str], body: bytes) -> Call:
        """Parse a request. Raises Invalid."""
        routes = self._routes.get(http_method, [])
        matches = ((match, method) for pattern, method in routes if (match := pattern.fullmatch(path)))
        if (route := next(matches, None)) is None:
            raise Invalid(404, "notFound", f"{http_method} {path} is none of the API's")
        match, method = route
        parameters = {**{name: unquote(value) for name, value in match.groupdict().items()}, **query}
        self._check_parameters(method, parameters)
        content = (json.loads(body) if body else None) or {}  # some clients send `null` for no body
        if "request" in method:
            self.check(method["request"]["$ref"], content)
        elif content:
            raise Invalid(400, "invalid", f"{method['id']} takes no body")
        return Call(method["id"].removeprefix(f"{self.api}."), parameters, content)

    def check_answer(self, call: Call, answer: Mapping[str, Any]) -> None:
        """Raises Invalid if Google cannot return this."""
        method = next(
            m for routes in self._routes.values() for _, m in routes if m["id"] == f"{self.api}.{call.method}"
        )
        if "response" in method:
            self.check(method["response"]["$ref"], answer)
        elif answer:
            raise Invalid(400, "invalid", f"{method['id']} answers nothing")

    def check(self, schema: str, value: Any) -> None:
        """Raises Invalid with the name of the field, unless the value fits the schema."""
        for where, what in self._problems({"$ref": schema}, value, schema):
            raise Invalid(400, "invalid", f"Invalid value for field '{where}': {what}")

    def _check_parameters(self, method: Mapping[str, Any], given: Mapping[str, str]) -> None:
        known = {**self._document["parameters"], **method["parameters"]}
        for name, value in given.items():
            if name not in known:
                raise Invalid(400, "invalidParameter", f"unknown parameter {name!r} of {method['id']}")
            for _, what in self._problems(known[name], _of_query(known[name], value), name):
                raise Invalid(400, "invalidParameter", f"Invalid value for {name!r}: {what}")
        for name, parameter in method["parameters"].items():
            if parameter.get("required") and name not in given:
                raise Invalid(400, "required", f"Required parameter: {name}")

    def _problems(self, schema: Mapping[str, Any], value: Any, where: str) -> Iterator[tuple[str, str]]:
        """(field, problem)"""
        if "$ref" in schema:
            schema = self._document["schemas"][schema["$ref"]]
        kind = _KINDS.get(schema.get("type", "any"), object)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            yield where, f"{value!r} is no {schema['type']}"
        elif kind is dict:
            for name, inner in value.items():
                known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
                if known is None:
                    yield f"{where}.{name}", "there is no such field"
                else:
                    yield from self._problems(known, inner, f"{where}.{name}")
        elif kind is list:
            for index, inner in enumerate(value):
                yield from self._problems(schema["items"], inner, f"{where}[{index}]")
        elif kind is str:
            yield from ((where, what) for what in _text_problems(schema, value))

    @cached_property
    def _document(self) -> dict[str, Any]:
        folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
        document: dict[str, Any] = json.loads((folder / self._file).read_text())
        return document

    @cached_property
    def _routes(self) -> dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]]:
        """HTTP method → (pattern of the path, method of the API), the longest pattern first"""
        by_http_method: dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]] = {}
        for method in _methods(self._document["resources"]):
            words = re.split(r"\{\+?(\w+)\}", method["path"])
            pattern = "".join(
                f"(?P<{word}>{_of_path(method, word)})" if odd else re.escape(word)
                for odd, word in zip([0, 1] * 99, words, strict=False)
            )
            route = re.compile(f"/{self._document['servicePath']}{pattern}")
            by_http_method.setdefault(method["httpMethod"], []).append((route, method))
        for routes in by_http_method.values():
            routes.sort(key=lambda route: -len(route[0].pattern))
        return by_http_method


def _methods(resources: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All methods, including those of nested resources."""
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource.get("resources", {}))


def _of_path(method: Mapping[str, Any], parameter: str) -> str:
    """The pattern of a parameter in a path: one segment, or its own pattern if it is written as `{+parameter}`."""
    whole = f"{{+{parameter}}}" in method["path"]
    pattern: str = method["parameters"][parameter].get("pattern", "") if whole else ""
    return pattern.removeprefix("^").removesuffix("$") or "[^/]+"


def _of_query(schema: Mapping[str, Any], text: str) -> Any:
    match schema["type"]:
        case "integer":
            return int(text)
        case "boolean":
            return text == "true"
        case _:
            return text


def _text_problems(schema: Mapping[str, Any], value: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{value!r} is none of {', '.join(schema['enum'])}"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield f"{value!r} does not match {schema['pattern']}"
    if schema.get("format") in ("int64", "uint64") and not re.fullmatch(r"-?\d+", value):
        yield f"{value!r} is no number"
