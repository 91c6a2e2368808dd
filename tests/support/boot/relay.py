"""Forwards ports of a machine to this computer: relay.py ADDRESS:PORT=TARGET:PORT...

It runs in the machine's network. Programs there, such as the agent, so reach servers of this computer at the addresses
that they have here, and the metadata service at a cloud's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys


async def main() -> None:
    for rule in sys.argv[1:]:
        here, _, there = rule.partition("=")
        address, _, port = here.rpartition(":")
        await asyncio.start_server(functools.partial(_relay, there), address, int(port))
    print("ready", flush=True)
    await asyncio.Event().wait()


async def _relay(there: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    address, _, port = there.rpartition(":")
    try:
        other_reader, other_writer = await asyncio.open_connection(address, int(port))
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))
    except OSError:
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


asyncio.run(main())
