"""Reads a section of `config.yaml` field by field. Each error names the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from perdure.controller.runtime.config import config_file
from perdure.sdk.spec.problems import choice_fix


class SectionError(config_file.SettingsError, ValueError):
    """An invalid setting: what is wrong, where, and what to do."""

    def __init__(self, message: str, *, where: str, fix: str) -> None:
        super().__init__(f"{where}: {message}; {fix}")
        self.message = message
        self.where = where
        self.fix = fix

    def with_location(self, location: str) -> SectionError:
        """The same error, with `location` (a file and line) before the field."""
        return SectionError(self.message, where=f"{location}: {self.where}", fix=self.fix)


class Section:
    """A mapping to read field by field. Every method raises SettingsError, which names the field."""

    def __init__(self, values: object, where: str, *, known: tuple[str, ...] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise SectionError(f"{values!r} is not a mapping", where=where, fix="write `name: value` lines")
        self.values: dict[str, Any] = {str(name): value for name, value in values.items()}
        self.where = where
        for name in self.values:
            if known is not None and name not in known:
                raise SectionError("no such setting", where=f"{where}.{name}", fix=choice_fix(name, known))

    def subsection(self, name: str) -> Section:
        values = self.values.get(name)
        return Section({} if values is None else values, f"{self.where}.{name}")

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or not value:
            self._reject(name, f"{value!r} is not text", "write a name")
        return value

    def text_or_none(self, name: str, pattern: str = ".*", *, kind: str = "text", example: str = "") -> str | None:
        """A text that matches `pattern`; None if the field is missing. `kind` and `example` go into the error."""
        if name not in self.values:
            return None
        text = self.text(name, "")
        if not re.fullmatch(pattern, text, re.DOTALL):
            self._reject(name, f"{text!r} is not a {kind}", f"write one like {example}")
        return text

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            self._reject(name, f"{value!r} is neither true nor false", "write true or false")
        return value

    def url_or_none(self, name: str) -> str | None:
        url = self.text_or_none(name)
        if url is not None and not url.startswith(("http://", "https://")):
            self._reject(name, f"{url!r} is not a URL", "write http://… or https://…")
        return url

    def names(self, name: str, pattern: str, *, kind: str, example: str) -> tuple[str, ...]:
        """A list of names that match `pattern`, without duplicates; empty if the field is missing."""
        value = self.values.get(name) or []
        if not isinstance(value, list):
            self._reject(name, f"{value!r} is not a list", f"write [{example}, …]")
        for item in value:
            if not isinstance(item, str) or not re.fullmatch(pattern, item):
                self._reject(name, f"{item!r} is not a {kind}", f"write names like {example}")
        return tuple(dict.fromkeys(value))

    def texts(self, *, prefix: str = "") -> dict[str, str]:
        """The whole section as a mapping from name to text. Every text must begin with `prefix`."""
        for name, value in self.values.items():
            if not isinstance(value, str) or not value or not value.startswith(prefix):
                self._reject(name, f"{value!r} does not begin with {prefix!r}", f"write {prefix}…")
        return dict(self.values)

    def number(self, name: str, default: float | None = None, *, above: float) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < float("inf"):
            self._reject(name, f"{value!r} is not a number above {above:g}", f"write a number above {above:g}")
        return float(value)

    def count(self, name: str, *, at_least: int) -> int:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            self._reject(name, f"{value!r} is not a whole number of {at_least} or more", f"write {at_least} or more")
        return value

    def count_or_none(self, name: str) -> int | None:
        return None if self.values[name] is None else self.count(name, at_least=0)

    def _reject(self, name: str, message: str, fix: str) -> NoReturn:
        raise SectionError(message, where=f"{self.where}.{name}", fix=fix)


@contextmanager
def locate_errors(home: Path) -> Iterator[None]:
    """Add the file and line in the config.yaml of `home` to a SettingsError that is raised within."""
    try:
        yield
    except SectionError as error:
        raise error.with_location(config_file.ConfigFile.load(home).location(tuple(error.where.split(".")))) from error
