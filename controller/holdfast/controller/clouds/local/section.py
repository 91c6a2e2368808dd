"""A section of `config.yaml`, read field by field; what is wrong is told with the field's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.controller import settings


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
        return str(value)

    def number(self, name: str, default: float | None = None, *, above: float) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < float("inf"):
            self._refuse(name, f"{value!r} is no number above {above:g}", f"write a number above {above:g}")
        return float(value)  # type: ignore[arg-type]

    def count(self, name: str, *, at_least: int) -> int:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            self._refuse(name, f"{value!r} is no whole number of {at_least} or more", f"write {at_least} or more")
        return int(value)  # type: ignore[arg-type]

    def count_or_none(self, name: str) -> int | None:
        return None if self.values[name] is None else self.count(name, at_least=0)

    def _refuse(self, name: str, message: str, fix: str) -> None:
        raise SettingsError(message, where=f"{self.where}.{name}", fix=fix)
