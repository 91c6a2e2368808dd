"""The SDK for asyncio: results, errors, and a program that ends while a call still waits."""

from __future__ import annotations

import asyncio
import inspect
import io
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.sdk import aio, clusters, jobs
from perdure.sdk.aio.threads import finished, in_thread
from perdure.sdk.clusters.requests import Request
from perdure.sdk.connection.client import Client
from support.helpers.timing import scaled
from unit.sdk.contract_server import Controller


def test_functions__have_the_arguments_of_those_that_they_stand_for() -> None:
    for ours, theirs in ((aio, clusters), (aio.jobs, jobs)):
        names = [name for name, value in vars(ours).items() if inspect.iscoroutinefunction(value)]
        assert len(names) >= 9
        for name in set(names) - {"get", "stream_and_get"}:
            assert inspect.signature(getattr(ours, name)) == inspect.signature(getattr(theirs, name)), name


def test_jobs__are_launched_and_followed_beside_other_tasks(controller: Controller, client: Client) -> None:
    controller.add("SUCCEEDED", name="bert", printed=b"one\n")
    written = io.BytesIO()

    async def program() -> list[Any]:
        return await asyncio.gather(
            aio.jobs.tail_logs(1, output_stream=written, client=client), aio.jobs.get(1, client=client)
        )

    code, job = asyncio.run(program())
    assert (code, job["name"], written.getvalue()) == (0, "bert", b"one\n")


def test_call__returns_the_result_of_its_request_and_raises_its_error() -> None:
    notes: list[Callable[[str], None]] = []

    def start(name: str) -> Request[str]:
        def finish(note: Callable[[str], None]) -> str:
            notes.append(note)
            if name == "lost":
                raise KeyError(name)
            return f"{name} is up"

        return Request(finish)

    async def program() -> None:
        assert await finished(start)("dev") == "dev is up"
        assert await aio.get(start("dev")) == await aio.stream_and_get(start("dev")) == "dev is up"
        assert await aio.get("a result") == "a result"
        with pytest.raises(KeyError):
            await finished(start)("lost")

    asyncio.run(program())


def test_cancelled_task__no_longer_waits() -> None:
    begun, release = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        release.wait(scaled(60))

    async def program() -> None:
        task = asyncio.create_task(in_thread(wait)())
        await asyncio.to_thread(begun.wait, scaled(20))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(program())
    release.set()


def test_program__ends_while_a_call_still_waits() -> None:
    """As one that follows a log and is interrupted."""
    script = """
import asyncio, threading
from perdure.sdk.aio.threads import in_thread

async def program():
    try:
        await asyncio.wait_for(in_thread(threading.Event().wait)(), 0.1)
    except TimeoutError:
        print("detached")

asyncio.run(program())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=scaled(30), check=False
    )
    assert (done.returncode, done.stdout) == (0, "detached\n"), done.stderr
