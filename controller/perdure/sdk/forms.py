"""The building blocks of the schema: each form accepts some ways of writing a value, and brings them to one.

`read` gives the canonical value, or None after reporting a problem. Reading a canonical value gives it back unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.sdk.problems import Path, Refused, choice_fix, nearest, shown
from perdure.sdk.report import Report

Finish = Callable[[dict[str, Any], dict[Any, Any], Path, Report], dict[str, Any]]


class Form:
    """One way to write a value. `allowed` describes it in error texts; `takes` looks at the value's kind alone."""

    allowed = "any value"

    def takes(self, value: object) -> bool:
        return value is not None

    def read(self, value: Any, path: Path, report: Report) -> Any:
        raise NotImplementedError

    def mismatch(self, value: object, path: Path, report: Report) -> None:
        """Report a value of a kind that this form does not take."""
        fix = f"allowed: {self.allowed}"
        if isinstance(value, bool | int | float) and "string" in self.allowed:
            fix += ", so put it in quotes"
        report.problem(path, f"found {shown(value)}", fix)


def read_as(form: Form, value: Any, path: Path, report: Report) -> Any:
    """The canonical value; None, with the problem reported, if it is of the wrong kind or has a wrong value."""
    if not form.takes(value):
        form.mismatch(value, path, report)
        return None
    return form.read(value, path, report)


@dataclass(eq=False, repr=False)
class Anything(Form):
    """Any value that JSON can hold. Keys become strings, as JSON would have them."""

    def read(self, value: Any, path: Path, report: Report) -> Any:
        match value:
            case dict():
                return {str(key): self.read(item, (*path, key), report) for key, item in value.items()}
            case list() | tuple():
                return [self.read(item, (*path, index), report) for index, item in enumerate(value)]
            case None | str() | bool() | int():
                return value
            case float() if math.isfinite(value):
                return value
        report.problem(path, f"found {shown(value)}", "allowed: text, finite numbers, booleans, lists, mappings")
        return None


@dataclass(eq=False, repr=False)
class Parsed(Form):
    """What `parse` can read: it returns the canonical value, or raises `Refused`."""

    parse: Callable[[Any], Any]
    allowed: str
    kinds: tuple[type, ...] = (str,)

    def takes(self, value: object) -> bool:
        return isinstance(value, self.kinds) and (bool in self.kinds or not isinstance(value, bool))

    def read(self, value: Any, path: Path, report: Report) -> Any:
        try:
            return self.parse(value)
        except Refused as refusal:
            report.refused(path, refusal, self.allowed)
            return None


def text(allowed: str = "a string") -> Parsed:
    """Any string, as it is written."""
    return Parsed(str, allowed)


def flag() -> Parsed:
    """A boolean."""
    return Parsed(bool, "true or false", (bool,))


def matching(pattern: str, allowed: str) -> Parsed:
    """Strings that match the whole of `pattern`."""

    def parse(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise Refused(f"found {shown(value)}")
        return value

    return Parsed(parse, allowed)


def word(*words: str) -> Parsed:
    """One of a few words, whatever their case."""
    canonical = {option.lower(): option for option in words}

    def parse(value: str) -> str:
        found = canonical.get(value.strip().lower())
        if found is None:
            raise Refused(f"unknown value {shown(value)}", choice_fix(value, words))
        return found

    return Parsed(parse, f"one of {', '.join(words)}")


@dataclass(eq=False, repr=False)
class Number(Form):
    """A number from `low` to `high`, both included; above 0 when `positive`."""

    low: float = -math.inf
    high: float = math.inf
    positive: bool = False
    whole: bool = True

    @property
    def allowed(self) -> str:  # type: ignore[override]
        kind = "a whole number" if self.whole else "a number"
        if self.positive:
            return f"{kind} above 0"
        if math.isinf(self.low):
            return kind
        return f"{kind} from {self.low:g}" + ("" if math.isinf(self.high) else f" to {self.high:g}")

    def takes(self, value: object) -> bool:
        return isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if self.low <= value <= self.high and math.isfinite(value) and (value > 0 or not self.positive):
            return value
        self.mismatch(value, path, report)
        return None


@dataclass(eq=False, repr=False)
class Items(Form):
    """A list. `alone`: a single value stands for a list of it."""

    of: Form
    alone: bool = False
    unique: bool = False
    at_least: int = 0
    at_most: int | None = None

    @property
    def allowed(self) -> str:  # type: ignore[override]
        return f"{self.of.allowed}, or a list of them" if self.alone else f"a list of {self.of.allowed}"

    def takes(self, value: object) -> bool:
        return isinstance(value, list | tuple) or (self.alone and self.of.takes(value))

    def read(self, value: Any, path: Path, report: Report) -> Any:
        if not isinstance(value, list | tuple):
            return [self.of.read(value, path, report)]
        if len(value) < self.at_least or (self.at_most is not None and len(value) > self.at_most):
            limit = f"at least {self.at_least}" if len(value) < self.at_least else f"at most {self.at_most}"
            report.problem(path, f"found a list of {len(value)}", f"give {limit}")
        items = [read_as(self.of, item, (*path, index), report) for index, item in enumerate(value)]
        for index, item in enumerate(items):
            if self.unique and item is not None and item in items[:index]:
                report.problem((*path, index), f"{shown(item)} is listed twice", "list it once")
        return items


@dataclass(eq=False, repr=False)
class Table(Form):
    """A mapping whose keys are the user's. `nullable`: a value may be left out. `inert`: as in `Field`."""

    key: Form
    value: Form
    nullable: bool = False
    allowed: str = "a mapping"
    inert: str = ""
    known: Mapping[str, Form] = field(default_factory=dict)

    def takes(self, value: object) -> bool:
        return isinstance(value, Mapping)

    def read(self, value: Any, path: Path, report: Report) -> Any:
        table: dict[str, Any] = {}
        for name, item in value.items():
            key = read_as(self.key, name, (*path, name), report)
            if item is None and not self.nullable:
                continue
            form = self.known.get(name, self.value)
            canonical = None if item is None else read_as(form, item, (*path, name), report)
            if self.inert and _says_something(canonical):
                report.warning((*path, name), self.inert)
            if canonical is not None or item is None:
                table[str(key)] = canonical
        return table


@dataclass(eq=False, repr=False)
class Field:
    """A field of a `Record`. `inert`: why a value that is given has no effect, for the warning."""

    form: Form
    inert: str = ""


@dataclass(eq=False, repr=False)
class Record(Form):
    """A mapping with known fields. A field without a value counts as not given.

    `exclusive`: pairs that can not be given together. `marker`: a key without which the mapping is some other record.
    `elsewhere`: fields that belong in another place → that place. `finish` checks what single fields can not, and
    returns the canonical value.
    """

    fields: Mapping[str, Field]
    allowed: str = "a mapping"
    required: Sequence[str] = ()
    exclusive: Sequence[tuple[str, str]] = ()
    marker: str = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    finish: Finish | None = None

    def takes(self, value: object) -> bool:
        return isinstance(value, Mapping) and (not self.marker or self.marker in value)

    def read(self, value: Any, path: Path, report: Report) -> Any:
        canonical: dict[str, Any] = {}
        for name, item in value.items():
            known = self.fields.get(name) if isinstance(name, str) else None
            if known is None:
                self._unknown(name, path, report)
            elif item is not None:
                canonical[name] = read_as(known.form, item, (*path, name), report)
                if known.inert and _says_something(canonical[name]):
                    report.warning((*path, name), known.inert)
        for name in self.required:
            if value.get(name) is None:
                report.problem(path, f"lacks {name!r}", f"give `{name}`")
        for first, second in self.exclusive:
            if value.get(first) is not None and value.get(second) is not None:
                report.problem((*path, second), f"given together with {first!r}", "keep one of them", at_key=True)
        canonical = {name: item for name, item in canonical.items() if item is not None}
        return self.finish(canonical, value, path, report) if self.finish else canonical

    def _unknown(self, name: object, path: Path, report: Report) -> None:
        place = self.elsewhere.get(str(name))
        near = nearest(name, self.fields)
        if place:
            fix = f"it belongs {place}"
        else:
            fix = f"did you mean {near!r}?" if near else f"allowed: {', '.join(self.fields)}"
        at = (*path, name if isinstance(name, str | int) else str(name))
        report.problem(at, f"unknown field {str(name)!r}", fix, at_key=True)


class Either(Form):
    """The first of several forms that takes the value. `allowed`: where the forms' own words do not read well."""

    def __init__(self, *forms: Form, allowed: str = "") -> None:
        self.forms = forms
        self.allowed = allowed or ", or ".join(form.allowed for form in forms)

    def takes(self, value: object) -> bool:
        return any(form.takes(value) for form in self.forms)

    def read(self, value: Any, path: Path, report: Report) -> Any:
        return next(form for form in self.forms if form.takes(value)).read(value, path, report)


def _says_something(value: object) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")
