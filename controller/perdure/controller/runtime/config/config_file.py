"""config.yaml as a document: its sections, and errors that name file, line and key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perdure.sdk.spec.problems import FieldPath, TaskError, choice_fix, describe, field_name
from perdure.sdk.spec.yaml_reader import Document, read_file

_NAME = "config.yaml"
Value = TypeVar("Value")


class SettingsError(Exception):
    """The configuration is invalid. The text says where and what to do."""


class ErrorCollector:
    """Reads several parts of the configuration, and raises the errors of all of them together."""

    def __init__(self) -> None:
        self._errors: list[SettingsError] = []

    def attempt(self, read: Callable[[], Value], otherwise: Value) -> Value:
        """What `read` returns; `otherwise` after its SettingsError, which `raise_if_any` raises."""
        try:
            return read()
        except SettingsError as error:
            self._errors.append(error)
            return otherwise

    def raise_if_any(self) -> None:
        """Raises SettingsError with the lines of all errors; the error itself if there is only one."""
        if len(self._errors) == 1:
            raise self._errors[0]
        lines = dict.fromkeys(line for error in self._errors for line in str(error).splitlines())
        if lines:
            raise SettingsError("\n".join(lines))


@dataclass(frozen=True)
class ConfigFile:
    """The content of config.yaml, with the line of every key."""

    path: Path
    document: Document

    @classmethod
    def load(cls, home: Path) -> ConfigFile:
        """The file in `home`; an empty document if there is none. Raises SettingsError."""
        path = home / _NAME
        try:
            documents = read_file(path) if path.exists() and path.read_text().strip() else []
        except TaskError as error:
            raise SettingsError("\n".join(map(str, error.problems))) from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{path}: is not a text file in UTF-8; correct or remove it") from error
        except PermissionError as error:
            raise SettingsError(f"{path}: cannot be read: {error.strerror}; run: chmod u+r {path}") from error
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
        if len(documents) > 1:
            raise SettingsError(f"{path}: expected one document, found {len(documents)}; remove the `---` lines")
        return cls(path, documents[0] if documents else Document({}))

    @classmethod
    def modified_at_ns(cls, home: Path) -> int | None:
        """When the file in `home` was last changed; None if there is none."""
        try:
            return (home / _NAME).stat().st_mtime_ns
        except OSError:
            return None

    @property
    def data(self) -> dict[str, Any]:
        """The mapping at the top. Raises SettingsError for anything else."""
        if not isinstance(self.document.value, dict):
            raise SettingsError(f"{self.path}: expected a mapping at the top, found {kind_of(self.document.value)}")
        return self.document.value

    def section(self, name: str, known: tuple[str, ...]) -> dict[str, Any]:
        """The mapping at `name`; empty if it is missing. Raises SettingsError for keys that are not `known`."""
        value = self.data.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error((name,), f"expected a mapping, found {kind_of(value)}")
        self.check(value, (name,), known)
        return value

    def seconds(self, name: str, known: tuple[str, ...]) -> dict[str, float]:
        """Like `section`, for a mapping whose values are all seconds. Raises SettingsError for other values."""
        values = self.section(name, known)
        wrong = [
            self.error((name, key), f"expected seconds (a number from 0), found {value!r}")
            for key, value in values.items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf")
        ]
        _raise_all(wrong)
        return {key: float(value) for key, value in values.items()}

    def check(self, mapping: dict[str, Any], path: FieldPath, known: tuple[str, ...]) -> None:
        """Raises SettingsError for the keys of `mapping`, which is at `path`, that are not `known`."""
        unknown = [name for name in mapping if name not in known]
        _raise_all([self.error((*path, name), f"no such setting; {choice_fix(name, known)}") for name in unknown])

    def error(self, key: FieldPath, message: str) -> SettingsError:
        return SettingsError(f"{self.location(key)}: {field_name(key)}: {message}")

    def location(self, key: FieldPath) -> str:
        """`file:line` of a key, or of the mapping that should contain it."""
        position = self.document.position(key, of_key=True)
        return f"{self.path}:{position.line}" if position else str(self.path)


def kind_of(value: object) -> str:
    """What a value is, without the value itself: it may contain a password or a URL with a secret."""
    return "a text" if isinstance(value, str) else describe(value)


def _raise_all(errors: Sequence[SettingsError]) -> None:
    if errors:
        raise SettingsError("\n".join(map(str, errors)))
