"""Label and field selectors, node affinity and tolerations, as the API server and the scheduler evaluate them."""

from __future__ import annotations

import re
from typing import Any

Object = dict[str, Any]
_SET = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")


def matches_labels(one: Object, selector: str | None) -> bool:
    labels = one["metadata"].get("labels") or {}
    for term in re.split(r",(?![^(]*\))", selector or ""):
        if not term.strip():
            continue
        if match := _SET.fullmatch(term):
            isin = labels.get(match[1]) in [value.strip() for value in match[3].split(",")]
            if isin is (match[2] == "notin"):
                return False
        elif "!=" in term:
            name, _, value = term.partition("!=")
            if labels.get(name.strip()) == value.strip():
                return False
        elif "=" in term:
            name, _, value = term.replace("==", "=").partition("=")
            if labels.get(name.strip()) != value.strip():
                return False
        elif (term.strip().lstrip("!") in labels) is term.strip().startswith("!"):
            return False
    return True


def matches_fields(one: Object, selector: str | None) -> bool:
    for term in (selector or "").split(","):
        if not term:
            continue
        path, _, wanted = term.replace("==", "=").partition("=")
        is_negated = path.endswith("!")
        value: Any = one
        for name in path.rstrip("!").split("."):
            value = (value or {}).get(name)
        if ((value or "") == wanted) is is_negated:
            return False
    return True


def fits_node(pod: Object, node: Object) -> str | None:
    """Why the pod's selectors and tolerations do not allow the node, in the scheduler's words; None if they do."""
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required and not any(_term_fits(term, node) for term in required["nodeSelectorTerms"]):
        return "node(s) didn't match Pod's node affinity/selector"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return None


def tolerates(pod: Object, taint: Object) -> bool:
    for one in pod["spec"].get("tolerations") or ():
        if one.get("effect") not in (None, "", taint["effect"]):
            continue
        if one.get("operator") == "Exists" and one.get("key") in (None, "", taint["key"]):
            return True
        if one.get("key") == taint["key"] and one.get("value", "") == taint.get("value", ""):
            return True
    return False


def _term_fits(term: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    for one in term.get("matchExpressions") or ():
        value = labels.get(one["key"])
        match one["operator"]:
            case "In":
                fits = value in one["values"]
            case "NotIn":
                fits = value not in one["values"]
            case "Exists":
                fits = value is not None
            case "DoesNotExist":
                fits = value is None
            case other:
                raise AssertionError(other)
        if not fits:
            return False
    for one in term.get("matchFields") or ():
        fits = (node["metadata"]["name"] in one["values"]) is (one["operator"] == "In")
        if not fits:
            return False
    return True


def quantity(text: Any) -> float:
    """A resource quantity such as `500m` or `4Gi` as a number."""
    match = re.fullmatch(r"([0-9.]+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", str(text))
    if match is None:
        raise ValueError(f"quantities must match the regular expression: {text!r}")
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(match[1]) * units.get(match[2] or "", 1.0)


def canonical(text: Any) -> str:
    """A quantity as the API server stores it: with the largest unit that leaves a whole number."""
    match = re.fullmatch(r"([0-9]+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", str(text))
    if match is None:
        return str(text)
    units = ["Ki", "Mi", "Gi", "Ti"] if "i" in (match[2] or "") else ["m", "", "k", "M", "G", "T"]
    amount, at, base = int(match[1]), units.index(match[2] or ""), 1024 if "i" in (match[2] or "") else 1000
    while amount and amount % base == 0 and at + 1 < len(units):
        amount, at = amount // base, at + 1
    return f"{amount}{units[at]}"


def requests(pod: Object) -> dict[str, float]:
    total: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total
