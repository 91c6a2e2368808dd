"""Answers like an OpenAI-style model server: models, completions, and streams of events. Standard library alone.

It is run by replicas: `python3 tiny_model_server.py PORT`. `LOAD_S`: how long it loads; `TOKEN_S`: between two events.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPLICA = os.environ.get("SKYPILOT_SERVE_REPLICA_ID", "?")
TOKEN_S = float(os.environ.get("TOKEN_S", "0.05"))
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
calls = 0
has_hung_up = False


def pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - a program of a user


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.headers.get("Upgrade") == "websocket":
            self.echo_frames()
        elif self.path == "/v1/models":
            self.answer({"object": "list", "data": [{"id": os.environ.get("MODEL", "tiny")}]})
        elif self.path == "/calls":
            self.answer({"replica": REPLICA, "calls": calls})
        elif self.path == "/once":
            self.hang_up_once()
        elif self.path == "/exit":
            os._exit(3)
        else:
            self.answer({"replica": REPLICA, "headers": dict(self.headers), "model": os.environ.get("MODEL", "tiny")})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def hang_up_once(self) -> None:
        """The first request has no answer."""
        global has_hung_up
        if has_hung_up:
            self.answer({"replica": REPLICA})
        has_hung_up, self.close_connection = True, True

    def do_POST(self) -> None:
        global calls  # noqa: PLW0603
        calls += 1
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        pause(request.get("wait_s", 0))
        if request.get("hang_up"):
            self.close_connection = True
            self.connection.close()
        elif request.get("stream"):
            self.stream(int(request.get("max_tokens", 10)))
        else:
            message = {"role": "assistant", "content": f"I am replica {REPLICA}."}
            self.answer({"choices": [{"message": message}], "method": self.command})

    do_PATCH = do_PUT = do_DELETE = do_POST

    def do_OPTIONS(self) -> None:
        self.answer({"method": self.command})

    def stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(count):
            self.chunk(f"data: {json.dumps({'index': index, 'replica': REPLICA, 'at': time.monotonic()})}\n\n")
            pause(TOKEN_S)
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")
        self.wfile.flush()

    def echo_frames(self) -> None:
        key = base64.b64encode(hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + _WEBSOCKET).digest())
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", key.decode())
        self.end_headers()
        self.close_connection = True
        while data := self.rfile.read1(65536):
            self.wfile.write(data)
            self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def main() -> None:
    print("loading the model", flush=True)
    pause(float(os.environ.get("LOAD_S", "0")))
    address = os.environ.get("SKYPILOT_NODE_IPS", "127.0.0.1").split()[0]
    Server((address, int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
