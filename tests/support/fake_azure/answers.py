"""Resource Manager's answers, errors among them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class Invalid(Exception):
    """A request that Azure would not take. `code` is Azure's."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()


def error(code: str, message: str, status: int) -> Answer:
    return Answer(status, {"error": {"code": code, "message": message}})
