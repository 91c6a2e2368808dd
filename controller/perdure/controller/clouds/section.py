"""A section of `config.yaml`, read field by field; what is wrong is told with the field's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from perdure.controller import settings


class SettingsError(settings.SettingsError, ValueError):
    """A setting that can not be used: what is wrong, where, what to do."""

    def __init__(self, message: str, *, where: str, fix: str) -> None:
        super().__init__(f"{where}: {message}; {fix}")
        self.message = message
        self.where = where
        self.fix = fix

    def at(self, place: str) -> SettingsError:
        """The same, with `place` (a file and line) before the field."""
        return SettingsError(self.message, where=f"{place}: {self.where}", fix=self.fix)


class Section:
    """A mapping read field by field. Every method raises SettingsError, which names the field."""

    def __init__(self, values: object, where: str, *, known: tuple[str, ...] | None = None) -> None:
        if not isinstance(values, Mapping):
            raise SettingsError(f"a mapping is needed, not {values!r}", where=where, fix="write `name: value` lines")
        self.values: dict[str, Any] = {str(name): value for name, value in values.items()}
        self.where = where
        for name in self.values:
            if known is not None and name not in known:
                raise SettingsError("no such setting", where=f"{where}.{name}", fix=f"use one of {', '.join(known)}")

    def part(self, name: str) -> Section:
        values = self.values.get(name)
        return Section({} if values is None else values, f"{self.where}.{name}")

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or not value:
            self._refuse(name, f"{value!r} is no text", "write a name")
        return value

    def text_or_none(self, name: str, pattern: str = ".*", *, what: str = "text", like: str = "") -> str | None:
        """None if it is not there. It fits the pattern; `like`: such a text."""
        if name not in self.values:
            return None
        text = self.text(name, "")
        if not re.fullmatch(pattern, text, re.DOTALL):
            self._refuse(name, f"{text!r} is no {what}", f"write one like {like}")
        return text

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            self._refuse(name, f"{value!r} is neither", "write true or false")
        return value

    def url_or_none(self, name: str) -> str | None:
        url = self.text_or_none(name)
        if url is not None and not url.startswith(("http://", "https://")):
            self._refuse(name, f"{url!r} is no URL", "write http://… or https://…")
        return url

    def names(self, name: str, pattern: str, *, what: str, like: str) -> tuple[str, ...]:
        """A list of names, each once, that fit the pattern; empty if it is not there. `like`: such a name."""
        value = self.values.get(name) or []
        if not isinstance(value, list):
            self._refuse(name, f"{value!r} is no list", f"write [{like}, …]")
        for one in value:
            if not isinstance(one, str) or not re.fullmatch(pattern, one):
                self._refuse(name, f"{one!r} is no {what}", f"write names like {like}")
        return tuple(dict.fromkeys(value))

    def texts(self, *, prefix: str = "") -> dict[str, str]:
        """All of this section, which maps names to texts that begin alike."""
        for name, value in self.values.items():
            if not isinstance(value, str) or not value or not value.startswith(prefix):
                self._refuse(name, f"{value!r} is none", f"write {prefix}…")
        return dict(self.values)

    def number(self, name: str, default: float | None = None, *, above: float) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < float("inf"):
            self._refuse(name, f"{value!r} is no number above {above:g}", f"write a number above {above:g}")
        return float(value)

    def count(self, name: str, *, at_least: int) -> int:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            self._refuse(name, f"{value!r} is no whole number of {at_least} or more", f"write {at_least} or more")
        return value

    def count_or_none(self, name: str) -> int | None:
        return None if self.values[name] is None else self.count(name, at_least=0)

    def _refuse(self, name: str, message: str, fix: str) -> NoReturn:
        raise SettingsError(message, where=f"{self.where}.{name}", fix=fix)


@contextmanager
def placed(home: Path) -> Iterator[None]:
    """A SettingsError raised within gets its place in the config.yaml of `home`."""
    try:
        yield
    except SettingsError as error:
        raise error.at(settings.ConfigFile.of(home).place(tuple(error.where.split(".")))) from error
