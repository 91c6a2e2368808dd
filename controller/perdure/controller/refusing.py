"""What a request is answered with that can not be taken."""

from __future__ import annotations


class Refused(Exception):
    """A request that can not be taken. `where` names the field; `fix` says what to do."""

    retry_after_s: int | None = None

    def __init__(self, message: str, *, where: str | None = None, fix: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.where, self.fix, self.status = message, where, fix, status


class FallenBehind(Refused):
    """The controller has more to do than it can, and takes nothing new before it has caught up."""

    retry_after_s = 5
