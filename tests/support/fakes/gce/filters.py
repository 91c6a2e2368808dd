"""Filters of list calls, in the forms that are used: `name = "x"`, `labels.k = "v"`, `name eq "a|b"`, joined by OR."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from support.fakes.gce.discovery import Invalid

_TERM = re.compile(r'([A-Za-z_][\w-]*(?:\.[\w-]+)?) (=|eq) ("[^"]*"|\w+)')


def parse(text: str | None) -> Callable[[Mapping[str, Any]], bool]:
    """Return a predicate for the resources that a filter selects. Raises Invalid."""
    if not text:
        return lambda _: True
    parts = [part.strip() for part in text.split(" OR ")]
    terms = [_term(part[1:-1] if part.startswith("(") and part.endswith(")") else part, text) for part in parts]
    return lambda resource: any(fits(resource) for fits in terms)


def _term(part: str, whole: str) -> Callable[[Mapping[str, Any]], bool]:
    term = _TERM.fullmatch(part)
    if term is None:
        raise Invalid(400, "invalid", f"Invalid value for field 'filter': '{whole}'. Invalid list filter expression.")
    field, operator, expected = term[1], term[2], term[3].strip('"')
    name, _, inner = field.partition(".")

    def fits(resource: Mapping[str, Any]) -> bool:
        value = resource.get(name)
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if value is None:
            return False
        return bool(re.fullmatch(expected, str(value))) if operator == "eq" else str(value) == expected

    return fits
