"""Small requests per second through a service's endpoint, and through SkyServe's load balancer, one after the other.

    PYTHONPATH=tests python -m benchmarks.service_proxies --skypilot PATH_TO_A_PYTHON_WITH_SKYPILOT

Both have the same two replicas, which are the same program, and the same load: connections that are kept, each with one
request at a time. Perdure's way leads through HAProxy, the daemon, the agent's outgoing connection and the agent;
SkyServe's from its process to a replica's open port. HAProxy alone, to the same ports, shows what the rest costs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.machine import print_machine

from perdure.controller.api.serve.proxy_process import find_haproxy
from perdure.sdk import serve
from support.helpers.services import running_services, service_task

SECONDS, CONNECTIONS = 5.0, 16
PORT, CONTROLLER_PORT, BALANCER_PORT, HAPROXY_PORT = 18080, 18091, 18092, 18093
NAME = "small"
# A server in a few lines of asyncio, so that the replicas do not decide the figure.
PROGRAM = textwrap.dedent("""
    import asyncio, os, sys

    BODY = b"ok"
    ANSWER = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nContent-Type: text/plain\\r\\n\\r\\n%s" % (len(BODY), BODY)

    class Server(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.rest = transport, b""

        def data_received(self, data):
            *heads, self.rest = (self.rest + data).split(b"\\r\\n\\r\\n")
            if heads:
                self.transport.write(ANSWER * len(heads))

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Server, sys.argv[1], int(sys.argv[2]))
        await server.serve_forever()

    asyncio.run(main())
""")
SYNC = textwrap.dedent("""
    import json, sys
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Controller(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = sys.argv[2].encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    HTTPServer(("127.0.0.1", int(sys.argv[1])), Controller).serve_forever()
""")
BALANCER = (
    "from sky.serve import load_balancer; "
    f"load_balancer.run_load_balancer('http://127.0.0.1:{CONTROLLER_PORT}', {BALANCER_PORT}, 'least_load')"
)
HAPROXY = """\
global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    balance leastconn
{servers}
"""
ADDRESSES = ("127.0.0.2", "127.0.0.3")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service_proxies", description=__doc__.splitlines()[0])
    parser.add_argument("--skypilot", type=Path, help="a Python that has skypilot; without it, SkyServe is left out")
    options = parser.parse_args(arguments)
    print_machine()
    folder = Path(tempfile.mkdtemp(prefix="proxies-"))
    program = folder / "server.py"
    program.write_text(PROGRAM)
    rates = {"perdure": _measure_perdure(folder)}
    with _replicas(program):
        rates["HAProxy alone"] = _measure_haproxy(folder)
        rates["replica alone"] = _rate(f"http://{ADDRESSES[0]}:{PORT}")
        if options.skypilot:
            rates["SkyServe"] = _measure_skyserve(options.skypilot)
    print(f"\n{CONNECTIONS} connections for {SECONDS:g} s\n")
    for name, rate in rates.items():
        print(f"{name:20}{rate:10.0f} requests/s")
    peer = rates.get("SkyServe")
    if not peer:
        return 0
    print(f"\n{'figure':24}{'perdure':>10}{'SkyServe':>10}{'ratio':>8}")
    print(f"{'small requests/s':24}{rates['perdure']:10.0f}{peer:10.0f}{rates['perdure'] / peer:8.1f}")
    return int(rates["perdure"] < 10 * peer)


def _measure_perdure(folder: Path) -> float:
    with running_services(folder / "home") as sky:
        run = 'exec python3 -c "$PROGRAM" "$SKYPILOT_NODE_IPS" 8080'  # machines have a /tmp of their own
        task = service_task({"replicas": 2, "readiness_probe": "/"}, run=run, envs={"PROGRAM": PROGRAM})
        started = serve.up(task, NAME, client=sky.client)
        sky.until_ready(NAME, 2)
        return _rate(started["endpoint"], started["token"])


def _measure_haproxy(folder: Path) -> float:
    config = folder / "haproxy.cfg"
    servers = "\n".join(f"    server s{i} {one}:{PORT}" for i, one in enumerate(ADDRESSES))
    config.write_text(HAPROXY.format(port=HAPROXY_PORT, servers=servers))
    with _running([find_haproxy() or "haproxy", "-db", "-f", str(config)], HAPROXY_PORT):
        return _rate(f"http://127.0.0.1:{HAPROXY_PORT}")


def _measure_skyserve(python: Path) -> float:
    urls = {f"http://{one}:{PORT}": {"gpu_type": "unknown"} for one in ADDRESSES}
    answer = json.dumps({"replica_info": urls, "ready_replica_urls": list(urls)})
    with (
        _running([sys.executable, "-c", SYNC, str(CONTROLLER_PORT), answer], CONTROLLER_PORT),
        _running([str(python), "-c", BALANCER], BALANCER_PORT),
    ):
        url = f"http://127.0.0.1:{BALANCER_PORT}"
        deadline = time.monotonic() + 60
        while _status(url) != 200 and time.monotonic() < deadline:  # it asks its controller after some seconds
            time.sleep(0.5)
        return _rate(url)


@contextlib.contextmanager
def _replicas(program: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in ADDRESSES:
            stack.enter_context(_running([sys.executable, str(program), one, str(PORT)], PORT, one))
        yield


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """A process, once it listens."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "SKYPILOT_DEBUG": "0"}
    )
    try:
        asyncio.run(_listening(host, port))
        yield
    finally:
        process.kill()
        process.wait()


async def _listening(host: str, port: int) -> None:
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return
            await asyncio.sleep(0.1)


def _status(url: str) -> int:
    async def ask() -> int:
        reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    try:
        return asyncio.run(asyncio.wait_for(ask(), 3))
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0  # it does not answer yet


def _rate(url: str, token: str = "") -> float:
    """Answers with the status 200 per second."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    request = f"GET / HTTP/1.1\r\nHost: x\r\n{authorization}\r\n".encode()
    return asyncio.run(_load(url, request))


async def _load(url: str, request: bytes) -> float:
    parts, end, done = urlsplit(url), time.monotonic() + SECONDS, 0

    async def caller() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while time.monotonic() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head[:20], head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            done += 1
        writer.close()

    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))
    return done / SECONDS


if __name__ == "__main__":
    sys.exit(main())
