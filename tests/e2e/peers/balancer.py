"""One address for several controllers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

from support.helpers.timing import scaled


class Relay:
    """A TCP balancer: each new connection goes to the next backend that answers. `backends`: ports of this computer."""

    def __init__(self) -> None:
        self.backends: dict[str, int] = {}
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = starting.result(30)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        def stop() -> None:
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.2, self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports = list(self.backends.values())
        first = next(self._turn)
        try:
            for at in range(len(ports)):
                port = ports[(first + at) % len(ports)]
                with contextlib.suppress(OSError, TimeoutError):
                    if await asyncio.wait_for(self._answers(port), scaled(3.0)):
                        theirs, back = await asyncio.open_connection("127.0.0.1", port)
                        await asyncio.gather(_pump(reader, back), _pump(theirs, writer))
                        return
        finally:
            writer.close()

    async def _answers(self, port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
            return b" 200 " in await reader.readline()
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
