"""Write `pods/pod_schema.json`: the fields of a pod, as the published OpenAPI schema of one version names them.

Run it as `python -m scripts.pod_schema`; it needs the package kubernetes-validate, of the extra `dev`. Each type is a
mapping from field to type: `[]Container`, `{}string`; `!` lists the required fields.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VERSION = "1.37.0"
TARGET = Path(__file__).parents[1] / "controller/perdure/controller/clouds/kubernetes/pods/pod_schema.json"
ROOTS = ("io.k8s.api.core.v1.PodSpec", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")


def main() -> None:
    import kubernetes_validate

    folder = Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{VERSION}-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    types: dict[str, Any] = {}
    for root in ROOTS:
        _add(root, definitions, types)
    TARGET.write_text(json.dumps(dict(sorted(types.items())), indent=0, separators=(",", ":")))


def _add(name: str, definitions: dict[str, Any], types: dict[str, Any]) -> str:
    short = name.rpartition(".")[2]
    if short not in types:
        types[short] = None  # types refer to themselves
        definition = definitions[name]
        if "properties" in definition:
            types[short] = {field: _type(one, definitions, types) for field, one in definition["properties"].items()}
            if definition.get("required"):
                types[short]["!"] = " ".join(definition["required"])
        else:
            types[short] = _type(definition, definitions, types)
    return short


def _type(one: dict[str, Any], definitions: dict[str, Any], types: dict[str, Any]) -> str:
    if "$ref" in one:
        return _add(one["$ref"].rpartition("/")[2], definitions, types)
    if "allOf" in one:
        return _type(one["allOf"][0], definitions, types)
    if "oneOf" in one or "anyOf" in one:
        return "quantity"
    kind = one.get("type", "any")
    if isinstance(kind, list):
        kind = next(name for name in kind if name != "null")
    if kind == "array":
        return f"[]{_type(one['items'], definitions, types)}"
    if kind == "object" and isinstance(one.get("additionalProperties"), dict):
        return f"{{}}{_type(one['additionalProperties'], definitions, types)}"
    return str(kind)


if __name__ == "__main__":
    main()
