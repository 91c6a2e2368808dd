"""Users, in a separate process: threads of the load generator would be delayed by its ten thousand machines.

`python -m benchmarks.scale.user wait HOME TIMEOUT_S` prints when a daemon on HOME first answered;
`submit HOST PORT TOKEN_FILE COUNT USERS` submits COUNT jobs one by one as USERS users, with the body from stdin;
`poll HOST PORT TOKEN_FILE EACH_S` polls a page of the queue until stdin ends.
"""

from __future__ import annotations

import http.client
import json
import secrets
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

_PAGE = "/api/v1/jobs?limit=50"


class Caller:
    """A user with one persistent connection."""

    def __init__(self, address: tuple[str, int], token: Path) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=600)
        self._headers = {"Authorization": f"Bearer {token.read_text().strip()}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Returns the decoded response. Raises SystemExit if the call was rejected."""
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        wait_until_ready = self._connection.getresponse()
        data = wait_until_ready.read()
        if wait_until_ready.status >= 300:
            raise SystemExit(f"{method} {path}: {wait_until_ready.status} {data[:500].decode()}")
        return json.loads(data)


def wait_until_ready(home: str, timeout_s: str) -> dict[str, Any] | None:
    """`{"at": seconds of the monotonic clock, "pid": of the daemon, "port"}`; None if it does not answer in time."""
    descriptor_path, give_up_at = Path(home) / "controller.json", time.monotonic() + float(timeout_s)
    while time.monotonic() < give_up_at:
        try:
            descriptor = json.loads(descriptor_path.read_text())
            port = int(descriptor["endpoint"].rsplit(":", 1)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return {"at": time.monotonic(), "pid": descriptor["pid"], "port": port}
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    return None


def submit(host: str, port: str, token: str, count: str, users: str) -> dict[str, Any] | None:
    """`{"s": seconds for all, "calls_s": [seconds of each]}`; None if a call was rejected."""
    body, calls_s = json.load(sys.stdin), []

    def work() -> None:
        caller = Caller((host, int(port)), Path(token))
        for _ in range(int(count) // int(users)):
            asked = time.monotonic()
            caller.request("POST", "/api/v1/jobs", {**body, "key": secrets.token_hex(16)})  # as `jobs launch` does
            calls_s.append(time.monotonic() - asked)

    threads = [threading.Thread(target=work) for _ in range(int(users))]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    return {"s": took_s, "calls_s": calls_s} if len(calls_s) == int(count) // int(users) * int(users) else None


def poll_queue(host: str, port: str, token: str, each_s: str) -> dict[str, Any]:
    """`{"calls_s": [seconds of each]}`."""
    caller, calls_s = Caller((host, int(port)), Path(token)), []
    while not select.select([sys.stdin], [], [], float(each_s))[0]:
        began = time.monotonic()
        caller.request("GET", _PAGE)
        calls_s.append(time.monotonic() - began)
    return {"calls_s": calls_s}


def main() -> int:
    command = {"wait": wait_until_ready, "submit": submit, "poll": poll_queue}[sys.argv[1]]
    result = command(*sys.argv[2:])  # type: ignore[operator]
    if result is None:
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
