"""The building blocks of the schema. A validator accepts some forms of a value and converts them to the canonical one.

`parse` returns the canonical value, or None after it has reported a problem. A canonical value is returned unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath, InvalidValue, choice_fix, describe, nearest

Finish = Callable[[dict[str, Any], dict[Any, Any], FieldPath, Report], dict[str, Any]]
NO_EFFECT = "accepted, but has no effect in Perdure"


class Validator:
    """One form of a value."""

    allowed = "any value"  # the form, for error texts and the documentation

    def accepts(self, value: object) -> bool:
        """Whether the value is of the right kind. Its content may still be wrong."""
        return value is not None

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        """Return the canonical form of an accepted value, or report a problem and return None."""
        raise NotImplementedError

    def add_kind_problem(self, value: object, path: FieldPath, report: Report) -> None:
        """Report a value of the wrong kind."""
        fix = f"allowed: {self.allowed}"
        if isinstance(value, bool | int | float) and "string" in self.allowed:
            fix += ", so put it in quotes"
        report.add_problem(path, f"found {describe(value)}", fix)


def validate(validator: Validator, value: Any, path: FieldPath, report: Report) -> Any:
    """Return the canonical value. If its kind or its content is wrong, report a problem and return None."""
    if not validator.accepts(value):
        validator.add_kind_problem(value, path, report)
        return None
    return validator.parse(value, path, report)


@dataclass(eq=False, repr=False)
class Anything(Validator):
    """Any value that JSON can represent. Keys become strings, as in JSON."""

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        match value:
            case dict():
                return {str(key): self.parse(item, (*path, key), report) for key, item in value.items()}
            case list() | tuple():
                return [self.parse(item, (*path, index), report) for index, item in enumerate(value)]
            case None | str() | bool() | int():
                return value
            case float() if math.isfinite(value):
                return value
        report.add_problem(path, f"found {describe(value)}", "allowed: text, finite numbers, booleans, lists, mappings")
        return None


@dataclass(eq=False, repr=False)
class Parsed(Validator):
    """Values of some types that a function parses."""

    function: Callable[[Any], Any]  # returns the canonical value, or raises InvalidValue
    allowed: str
    kinds: tuple[type, ...] = (str,)

    def accepts(self, value: object) -> bool:
        return isinstance(value, self.kinds) and (bool in self.kinds or not isinstance(value, bool))

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        try:
            return self.function(value)
        except InvalidValue as error:
            report.add_invalid_value(path, error, self.allowed)
            return None


def text(allowed: str = "a string") -> Parsed:
    """Any string, unchanged."""
    return Parsed(str, allowed)


def flag() -> Parsed:
    """A boolean."""
    return Parsed(bool, "true or false", (bool,))


TEXT = text()
FLAG = flag()


def matching(pattern: str, allowed: str) -> Parsed:
    """Strings that match the whole of `pattern`."""

    def parse(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise InvalidValue(f"found {describe(value)}")
        return value

    return Parsed(parse, allowed)


def choice(*words: str) -> Parsed:
    """One of several words, in any case."""
    canonical = {option.lower(): option for option in words}

    def parse(value: str) -> str:
        option = canonical.get(value.strip().lower())
        if option is None:
            raise InvalidValue(f"unknown value {describe(value)}", choice_fix(value, words))
        return option

    return Parsed(parse, f"one of {', '.join(words)}")


@dataclass(eq=False, repr=False)
class Number(Validator):
    """A number from `low` to `high`, both included; above 0 if `positive`."""

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

    def accepts(self, value: object) -> bool:
        return isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        if self.low <= value <= self.high and math.isfinite(value) and (value > 0 or not self.positive):
            return value
        self.add_kind_problem(value, path, report)
        return None


@dataclass(eq=False, repr=False)
class Items(Validator):
    """A list."""

    item: Validator
    allow_single: bool = False  # a single value means a list of it
    unique: bool = False  # for items whose canonical values are hashable
    at_least: int = 0
    at_most: int | None = None

    @property
    def allowed(self) -> str:  # type: ignore[override]
        return f"{self.item.allowed}, or a list of them" if self.allow_single else f"a list of {self.item.allowed}"

    def accepts(self, value: object) -> bool:
        return isinstance(value, list | tuple) or (self.allow_single and self.item.accepts(value))

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        if not isinstance(value, list | tuple):
            return [self.item.parse(value, path, report)]
        if len(value) < self.at_least or (self.at_most is not None and len(value) > self.at_most):
            limit = f"at least {self.at_least}" if len(value) < self.at_least else f"at most {self.at_most}"
            report.add_problem(path, f"found a list of {len(value)}", f"give {limit}")
            return None
        items = [validate(self.item, item, (*path, index), report) for index, item in enumerate(value)]
        if self.unique:
            seen: set[Any] = set()
            for index, item in enumerate(items):
                if item is not None and item in seen:
                    report.add_problem((*path, index), f"{describe(item)} is listed twice", "list it once")
                seen.add(item)
        return items


@dataclass(eq=False, repr=False)
class Table(Validator):
    """A mapping whose keys the user chooses."""

    key: Validator
    value: Validator
    nullable: bool = False  # null is a value; otherwise it removes the key
    allowed: str = "a mapping"
    no_effect: str = ""  # as in `Field`, for each key that is not known
    known: Mapping[str, Validator] = field(default_factory=dict)  # key → validator, instead of `value`
    at_most: int | None = None

    def accepts(self, value: object) -> bool:
        return isinstance(value, Mapping)

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        if self.at_most is not None and len(value) > self.at_most:
            report.add_problem(path, f"found a mapping of {len(value)}", f"give at most {self.at_most}")
            return None
        table: dict[str, Any] = {}
        for name, item in value.items():
            key = validate(self.key, name, (*path, name), report)
            if item is None and not self.nullable:
                continue
            validator = self.known.get(name, self.value)
            canonical = None if item is None else validate(validator, item, (*path, name), report)
            if self.no_effect and name not in self.known and _is_meaningful(canonical):
                near = nearest(name, self.known)
                report.add_warning((*path, name), self.no_effect + (f"; did you mean {near!r}?" if near else ""))
            if canonical is not None or item is None:
                table[str(key)] = canonical
        return table


@dataclass(eq=False, repr=False)
class Field:
    """A field of a `Record`."""

    validator: Validator
    meaning: str  # what it does, its default and its unit, for the documentation
    no_effect: str = field(default="", kw_only=True)  # the warning if a value is given; empty if the field is acted on
    #: Why a task with a value is not launched, unless the user gives `--ignore`; empty if it is launched.
    refused: str = field(default="", kw_only=True)
    acted_on: str = field(default="", kw_only=True)  # the clouds, stores or modes that act on it; empty: all of them


@dataclass(eq=False, repr=False)
class Record(Validator):
    """A mapping with known fields. A field that is null counts as not given."""

    fields: Mapping[str, Field]
    allowed: str = "a mapping"
    required: Sequence[str] = ()
    exclusive: Sequence[tuple[str, str]] = ()  # pairs that cannot be given together
    marker: str = ""  # a key without which the mapping is another record
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # field that belongs in another place → that place
    finish: Finish | None = None  # checks that need several fields; returns the canonical value

    def accepts(self, value: object) -> bool:
        return isinstance(value, Mapping) and (not self.marker or self.marker in value)

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        canonical: dict[str, Any] = {}
        for name, item in value.items():
            known = self.fields.get(name) if isinstance(name, str) else None
            if known is None:
                self._unknown(name, path, report)
            elif item is not None:
                canonical[name] = validate(known.validator, item, (*path, name), report)
                if known.no_effect and _is_meaningful(canonical[name]):
                    report.add_warning((*path, name), known.no_effect)
                if known.refused and _is_meaningful(canonical[name]):
                    report.add_unsupported((*path, name), known.refused)
        for name in self.required:
            if value.get(name) is None:
                report.add_problem(path, f"lacks {name!r}", f"give `{name}`")
        for first, second in self.exclusive:
            if value.get(first) is not None and value.get(second) is not None:
                report.add_problem((*path, second), f"given together with {first!r}", "keep one of them", at_key=True)
        canonical = {name: item for name, item in canonical.items() if item is not None}
        return self.finish(canonical, value, path, report) if self.finish else canonical

    def _unknown(self, name: object, path: FieldPath, report: Report) -> None:
        place = self.elsewhere.get(str(name))
        public = [field for field in self.fields if not field.startswith("_")]  # the others are of stored YAMLs
        near = nearest(name, public)
        fix = f"it belongs {place}" if place else f"did you mean {near!r}?" if near else f"allowed: {', '.join(public)}"
        at = (*path, name if isinstance(name, str | int) else str(name))
        report.add_problem(at, f"unknown field {str(name)!r}", fix, at_key=True)


class OneOf(Validator):
    """The first of several validators that accepts the value. `allowed` replaces their descriptions."""

    def __init__(self, *validators: Validator, allowed: str = "") -> None:
        self.validators = validators
        self.allowed = allowed or ", or ".join(validator.allowed for validator in validators)

    def accepts(self, value: object) -> bool:
        return any(validator.accepts(value) for validator in self.validators)

    def parse(self, value: Any, path: FieldPath, report: Report) -> Any:
        return next(validator for validator in self.validators if validator.accepts(value)).parse(value, path, report)


def _is_meaningful(value: object) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")
