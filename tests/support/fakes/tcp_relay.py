"""A TCP relay between two programs of this computer that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Line:
    """Forwards `port` to another port. `cut` resets open connections and rejects new ones until `join`."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.port = int(starting.result(30).sockets[0].getsockname()[1])

    def cut(self) -> None:
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._hang_up)

    def join(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.2, self._loop.stop)
        self._thread.join(10)

    def _hang_up(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to)
        writers = {writer, server_writer}
        self._open |= writers
        try:
            await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))
        finally:
            self._open -= writers


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
