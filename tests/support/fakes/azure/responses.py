"""Responses of Resource Manager, including errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

Headers = Message | Mapping[str, str]


class Invalid(Exception):
    """A request that Azure would reject. `code` is Azure's error code."""

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
