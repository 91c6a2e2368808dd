"""Google's own descriptions of its APIs, and what is held against them: requests and answers."""

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


class Discovery:
    """The document of one version of one API: `Discovery("compute", "v1")`."""

    def __init__(self, api: str, version: str) -> None:
        self.api = api
        self._file = f"{api}.{version}.json"

    def read(self, http_method: str, path: str, query: Mapping[str, str], body: bytes) -> Call:
        """The call that this is. Raises Invalid."""
        routes = self._routes.get(http_method, [])
        fitting = ((found, method) for pattern, method in routes if (found := pattern.fullmatch(path)))
        if (route := next(fitting, None)) is None:
            raise Invalid(404, "notFound", f"{http_method} {path} is none of the API's")
        found, method = route
        parameters = {**{name: unquote(value) for name, value in found.groupdict().items()}, **query}
        self._check_parameters(method, parameters)
        given = (json.loads(body) if body else None) or {}  # `null` is what some clients say for nothing
        if "request" in method:
            self.check(method["request"]["$ref"], given)
        elif given:
            raise Invalid(400, "invalid", f"{method['id']} takes no body")
        return Call(method["id"].removeprefix(f"{self.api}."), parameters, given)

    def check_answer(self, call: Call, answer: Mapping[str, Any]) -> None:
        """Raises Invalid if Google could not have said this."""
        method = next(
            m for routes in self._routes.values() for _, m in routes if m["id"] == f"{self.api}.{call.method}"
        )
        if "response" in method:
            self.check(method["response"]["$ref"], answer)
        elif answer:
            raise Invalid(400, "invalid", f"{method['id']} answers nothing")

    def check(self, schema: str, value: Any) -> None:
        """Raises Invalid, which names the field."""
        for where, what in self._problems({"$ref": schema}, value, schema):
            raise Invalid(400, "invalid", f"Invalid value for field '{where}': {what}")

    def _check_parameters(self, method: Mapping[str, Any], given: Mapping[str, str]) -> None:
        known = {**self._document["parameters"], **method["parameters"]}
        for name, value in given.items():
            if name not in known:
                raise Invalid(400, "invalidParameter", f"unknown parameter {name!r} of {method['id']}")
            for _, what in self._problems(known[name], _of_query(known[name], value), name):
                raise Invalid(400, "invalidParameter", f"Invalid value for {name!r}: {what}")
        for name, told in method["parameters"].items():
            if told.get("required") and name not in given:
                raise Invalid(400, "required", f"Required parameter: {name}")

    def _problems(self, told: Mapping[str, Any], value: Any, where: str) -> Iterator[tuple[str, str]]:
        """(field, what is wrong with it)"""
        if "$ref" in told:
            told = self._document["schemas"][told["$ref"]]
        kind = _KINDS.get(told.get("type", "any"), object)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            yield where, f"{value!r} is no {told['type']}"
        elif kind is dict:
            for name, inner in value.items():
                known = told.get("properties", {}).get(name) or told.get("additionalProperties")
                if known is None:
                    yield f"{where}.{name}", "there is no such field"
                else:
                    yield from self._problems(known, inner, f"{where}.{name}")
        elif kind is list:
            for index, inner in enumerate(value):
                yield from self._problems(told["items"], inner, f"{where}[{index}]")
        elif kind is str:
            yield from ((where, what) for what in _wrong_text(told, value))

    @cached_property
    def _document(self) -> dict[str, Any]:
        folder = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
        document: dict[str, Any] = json.loads((folder / self._file).read_text())
        return document

    @cached_property
    def _routes(self) -> dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]]:
        """HTTP method → every method of the API that goes by it, the longest path first."""
        found: dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]] = {}
        for method in _methods(self._document["resources"]):
            words = re.split(r"\{\+?(\w+)\}", method["path"])
            pattern = "".join(
                f"(?P<{word}>{_of_path(method, word)})" if odd else re.escape(word)
                for odd, word in zip([0, 1] * 99, words, strict=False)
            )
            route = re.compile(f"/{self._document['servicePath']}{pattern}")
            found.setdefault(method["httpMethod"], []).append((route, method))
        for routes in found.values():
            routes.sort(key=lambda route: -len(route[0].pattern))
        return found


def _methods(resources: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of resources that lie in others, too."""
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource.get("resources", {}))


def _of_path(method: Mapping[str, Any], parameter: str) -> str:
    """What may stand there: one word, or as many as its own pattern has where it is `{+such}`."""
    whole = f"{{+{parameter}}}" in method["path"]
    pattern: str = method["parameters"][parameter].get("pattern", "") if whole else ""
    return pattern.removeprefix("^").removesuffix("$") or "[^/]+"


def _of_query(told: Mapping[str, Any], text: str) -> Any:
    match told["type"]:
        case "integer":
            return int(text)
        case "boolean":
            return text == "true"
        case _:
            return text


def _wrong_text(told: Mapping[str, Any], value: str) -> Iterator[str]:
    if "enum" in told and value not in told["enum"]:
        yield f"{value!r} is none of {', '.join(told['enum'])}"
    if "pattern" in told and not re.fullmatch(told["pattern"], value):
        yield f"{value!r} does not match {told['pattern']}"
    if told.get("format") in ("int64", "uint64") and not re.fullmatch(r"-?\d+", value):
        yield f"{value!r} is no number"
