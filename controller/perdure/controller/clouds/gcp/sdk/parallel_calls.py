"""Calls for several machines at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_CONCURRENT_CALLS = 8
T = TypeVar("T")


def parallel(ids: Sequence[str], function: Callable[[str], T]) -> dict[str, T]:
    """Call `function` for each id, in parallel. Completes all calls before it raises the first error."""
    if len(ids) < 2:
        return {id: function(id) for id in ids}
    with ThreadPoolExecutor(min(len(ids), MAX_CONCURRENT_CALLS), thread_name_prefix="gcp-calls") as pool:
        futures = {id: pool.submit(function, id) for id in ids}
    return {id: future.result() for id, future in futures.items()}
