"""`ConnectionAdmission`: nodes are accepted in small batches, and not before the controller is ready."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.controller.api.server import protocols
from perdure.controller.api.server.protocols import ConnectionAdmission


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 20))

    return run


def admit_all(admission: ConnectionAdmission, count: int) -> list[int]:
    """Ask for the admission of `count` connections. Their numbers appear in the result as they are accepted."""
    accepted: list[int] = []

    def accept(number: int) -> Callable[[], None]:
        return lambda: accepted.append(number)

    for number in range(count):
        admission.admit(accept(number))
    return accepted


@on_a_loop
async def test_admission__serves_others_between_batches() -> None:
    admission = ConnectionAdmission()
    admission.open()
    accepted = admit_all(admission, 100)
    counts = []
    while len(accepted) < 100:
        counts.append(len(accepted))
        await asyncio.sleep(0)
    assert accepted == list(range(100))
    assert max(after - before for before, after in itertools.pairwise(counts)) == 16


@on_a_loop
async def test_admission__accepts_none_before_open() -> None:
    admission = ConnectionAdmission()
    accepted = admit_all(admission, 3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert accepted == []
    await asyncio.to_thread(admission.open)
    while len(accepted) < 3:
        await asyncio.sleep(0)


@on_a_loop
async def test_admission__opens_by_itself_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "MAX_CLOSED_S", 0.01)
    accepted = admit_all(ConnectionAdmission(), 1)
    while not accepted:
        await asyncio.sleep(0.001)
    assert accepted == [0]


@on_a_loop
async def test_admission__continues_after_a_failed_connection() -> None:
    admission, errors = ConnectionAdmission(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    admission.open()

    def fail() -> None:
        raise RuntimeError("the connection broke")

    admission.admit(fail)
    accepted = admit_all(admission, 1)
    while not accepted:
        await asyncio.sleep(0)
    assert [type(error) for error in errors] == [RuntimeError]
