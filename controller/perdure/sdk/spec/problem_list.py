"""Collects the problems and warnings of a document while it is validated."""

from __future__ import annotations

from perdure.sdk.spec.problems import FieldPath, InvalidValue, Problem, TaskError, UnsupportedField, field_name
from perdure.sdk.spec.yaml_reader import Document

_ALTERNATIVES = ("any_of", "ordered")  # `--ignore` concerns all alternatives of `resources`
_MAX_PROBLEMS = 1_000
_MAX_WARNINGS = 1_000


class Report:
    """Problems and warnings of one document, each with its position in the text if there is one."""

    def __init__(self, document: Document | None = None) -> None:
        self._document = document
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.unsupported: list[UnsupportedField] = []

    def add_problem(self, path: FieldPath, message: str, fix: str = "", *, at_key: bool = False) -> None:
        """Record that the value at `path` (or its key) is wrong. Raises TaskError if there are far too many problems:
        nobody reads more, and each costs time and memory."""
        self.problems.append(self._placed(path, message, fix, at_key=at_key))
        if len(self.problems) >= _MAX_PROBLEMS:
            self.raise_if_invalid()

    def add_invalid_value(self, path: FieldPath, error: InvalidValue, allowed: str) -> None:
        """Record the error as a problem. `allowed` describes the accepted values, in case the error has no fix."""
        self.add_problem(path, error.message, error.fix or f"allowed: {allowed}")

    def add_warning(self, path: FieldPath, message: str) -> None:
        """Record that the value at `path` is accepted, but has no effect. Of far too many, the first ones are kept."""
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(self._placed(path, message, "", at_key=True))

    def add_unsupported(self, path: FieldPath, message: str) -> None:
        """Record that the value at `path` is accepted, but that a launch with it is refused.

        `message`: what would happen, and what to write instead. It replaces those of values inside the value.
        """
        at = self._placed(path, message, "", at_key=True)
        inside = (f"{at.field}.", f"{at.field}[")
        self.unsupported = [field for field in self.unsupported if not field.field.startswith(inside)]
        option = ".".join(str(part) for part in path if not isinstance(part, int) and part not in _ALTERNATIVES)
        fix = f"to launch without it: --ignore {option}"
        self.unsupported.append(UnsupportedField(at.field, message, fix, at.file, at.line, at.column, option))

    def raise_if_invalid(self) -> None:
        """Raise TaskError with all problems, in the order of the text, if there are any."""
        if self.problems:
            raise TaskError(sorted(self.problems, key=lambda problem: problem.line or 0))

    def _placed(self, path: FieldPath, message: str, fix: str, *, at_key: bool) -> Problem:
        document = self._document
        at = document.position(path, of_key=at_key) if document else None
        file = document.file if document else None
        return Problem(field_name(path), message, fix, file, at.line if at else None, at.column if at else None)
