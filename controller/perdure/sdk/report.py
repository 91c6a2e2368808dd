"""Collects what is wrong with a document, and what is accepted but not acted upon, while it is read."""

from __future__ import annotations

from perdure.sdk.problems import Path, Problem, Refused, TaskError, field_name
from perdure.sdk.yaml_reader import Document


class Report:
    """Problems and warnings of one document, each with its place in the text where there is one."""

    def __init__(self, document: Document | None = None) -> None:
        self._document = document
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def problem(self, path: Path, message: str, fix: str = "", *, at_key: bool = False) -> None:
        """Note that the value at `path` (or its key) is wrong."""
        self.problems.append(self._placed(path, message, fix, at_key=at_key))

    def refused(self, path: Path, refusal: Refused, allowed: str) -> None:
        self.problem(path, refusal.message, refusal.fix or f"allowed: {allowed}")

    def warning(self, path: Path, message: str) -> None:
        """Note that the value at `path` is accepted, but has no effect."""
        self.warnings.append(self._placed(path, message, "", at_key=True))

    def finish(self) -> None:
        """Raise `TaskError` if anything is wrong."""
        if self.problems:
            raise TaskError(sorted(self.problems, key=lambda problem: problem.line or 0))

    def _placed(self, path: Path, message: str, fix: str, *, at_key: bool) -> Problem:
        document = self._document
        at = document.position(path, of_key=at_key) if document else None
        file = document.file if document else None
        return Problem(field_name(path), message, fix, file, at.line if at else None, at.column if at else None)
