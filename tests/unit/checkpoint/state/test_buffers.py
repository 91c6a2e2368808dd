"""Memory for large transfers."""

from __future__ import annotations

import os
import threading

from perdure.checkpoint.state.buffers import BufferPool, copy_bytes, large_buffer


def test_large_buffer__is_private_and_has_the_requested_size() -> None:
    assert [len(large_buffer(size)) for size in (0, 1, 5000)] == [0, 1, 5000]
    buffer = large_buffer(4096)
    child = os.fork()
    if not child:
        buffer[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert buffer[0] == 0


def test_copy_bytes__small_large_and_read_only() -> None:
    for size in (0, 10, 1_000_000):
        content = os.urandom(size)
        target = large_buffer(size)
        copy_bytes(target, memoryview(content))
        assert target == content
        again = large_buffer(size)
        copy_bytes(again, target)
        assert again == content


def test_buffer_pool__gives_each_buffer_to_one_taker() -> None:
    pool = BufferPool(64)
    failures: list[int] = []

    def use(number: int) -> None:
        for _ in range(300):
            buffer = pool.take()
            buffer[:] = bytes([number]) * 64
            if bytes(buffer) != bytes([number]) * 64:
                failures.append(number)
            pool.give_back(buffer)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_buffer_pool__keeps_as_many_as_it_may() -> None:
    pool = BufferPool(64, max_unused=2)
    taken = [pool.take() for _ in range(4)]
    for buffer in taken:
        pool.give_back(buffer)
    again = [pool.take() for _ in range(4)]
    kept = {id(one) for one in again} & {id(one) for one in taken}
    assert len(kept) == 2
