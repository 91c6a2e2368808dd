"""Exceptions of requests that are rejected. The API turns them into error responses."""

from __future__ import annotations


class RequestRejected(Exception):
    """A request that is rejected and has changed nothing. `where` names the field; `fix` says what to do."""

    retry_after_s: int | None = None

    def __init__(self, message: str, *, where: str | None = None, fix: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.where, self.fix, self.status = message, where, fix, status


class Superseded(RequestRejected):
    """The cluster was stopped, started again or taken down while the request was handled."""


class Overloaded(RequestRejected):
    """The controller is behind with its work, and accepts nothing new until it has caught up."""

    retry_after_s = 5


def impossible_sweep(problem: str, fix: str) -> RequestRejected:
    """The rejection of a sweep, none of whose jobs is launched."""
    return RequestRejected(f"the sweep cannot be launched: {problem}", where="sweep", fix=fix)
