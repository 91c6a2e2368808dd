"""The page of the HTTP API, from the daemon's own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.controller.api.app import openapi_document

_METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    api = openapi_document()
    return "\n".join(_page(api)) + "\n"


def _page(api: dict[str, Any]) -> Iterator[str]:
    yield "# HTTP API"
    yield ""
    yield "The routes of the controller, from its OpenAPI document (`GET /openapi.json` of a running controller)."
    yield "Requests carry a token of a user as `Authorization: Bearer TOKEN`, except where a route says otherwise."
    yield ""
    for path in sorted(api["paths"]):
        for method in _METHODS:
            if (operation := api["paths"][path].get(method)) is not None:
                yield from _operation(method.upper(), path, operation)
    yield "## Types"
    yield ""
    for name, schema in sorted(api.get("components", {}).get("schemas", {}).items()):
        yield from _schema(name, schema)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## `{method} {path}`"
    yield ""
    if text := operation.get("description") or operation.get("summary"):
        yield str(text).strip()
        yield ""
    if parameters := operation.get("parameters"):
        yield "| parameter | in | type | required | meaning |"
        yield "|---|---|---|---|---|"
        for one in parameters:
            required = "yes" if one.get("required") else ""
            meaning = _cell(one.get("description"))
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {required} | {meaning} |"
        yield ""
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body (`{kind}`): {_type(content.get('schema', {}))}"
        yield ""
    yield "| status | returned | meaning |"
    yield "|---|---|---|"
    for status, answer in sorted(operation["responses"].items()):
        types = {_type(content.get("schema", {})) for content in answer.get("content", {}).values()}
        yield f"| {status} | {', '.join(sorted(types))} | {_cell(answer.get('description'))} |"
    yield ""


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if text := schema.get("description"):
        yield str(text).strip()
        yield ""
    if properties := schema.get("properties"):
        required = set(schema.get("required", ()))
        yield "| field | type | required | meaning |"
        yield "|---|---|---|---|"
        for field, value in properties.items():
            meaning = _cell(value.get("description"))
            yield f"| `{field}` | {_type(value)} | {'yes' if field in required else ''} | {meaning} |"
        yield ""


def _type(schema: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(option) for option in options)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _cell(text: object) -> str:
    return " ".join(str(text or "").split()).replace("|", "\\|")
