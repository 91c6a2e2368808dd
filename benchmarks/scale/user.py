"""Users, as a process of their own: threads of the load generator would wait for it, which has ten thousand machines.

`python -m benchmarks.scale.user answer HOME PATIENCE_S` prints when a daemon on HOME first answered;
`submit HOST PORT TOKEN_FILE COUNT USERS` has some users submit so many jobs one by one, each call's body on its stdin;
`look HOST PORT TOKEN_FILE EACH_S` asks for a page of the queue, again and again, until its stdin ends.
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
    """A user with one connection, that stays."""

    def __init__(self, address: tuple[str, int], token: Path) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=600)
        self._headers = {"Authorization": f"Bearer {token.read_text().strip()}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What was answered, decoded. Raises SystemExit where the call was refused."""
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {data[:500].decode()}")
        return json.loads(data)


def answer(home: str, patience_s: str) -> dict[str, Any] | None:
    """`{"at": seconds of the monotonic clock, "pid": of the daemon, "port"}`; nothing if it does not answer in time."""
    told, give_up_at = Path(home) / "controller.json", time.monotonic() + float(patience_s)
    while time.monotonic() < give_up_at:
        try:
            found = json.loads(told.read_text())
            port = int(found["endpoint"].rsplit(":", 1)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return {"at": time.monotonic(), "pid": found["pid"], "port": port}
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    return None


def submit(host: str, port: str, token: str, count: str, users: str) -> dict[str, Any] | None:
    """`{"s": that all took, "calls_s": [each]}`; nothing if one was refused."""
    body, calls_s = json.load(sys.stdin), []

    def work() -> None:
        caller = Caller((host, int(port)), Path(token))
        for _ in range(int(count) // int(users)):
            asked = time.monotonic()
            caller.ask("POST", "/api/v1/jobs", {**body, "key": secrets.token_hex(16)})  # as `jobs launch` does
            calls_s.append(time.monotonic() - asked)

    threads = [threading.Thread(target=work) for _ in range(int(users))]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    return {"s": took_s, "calls_s": calls_s} if len(calls_s) == int(count) // int(users) * int(users) else None


def look(host: str, port: str, token: str, each_s: str) -> dict[str, Any]:
    """`{"calls_s": [each]}`."""
    caller, calls_s = Caller((host, int(port)), Path(token)), []
    while not select.select([sys.stdin], [], [], float(each_s))[0]:
        asked = time.monotonic()
        caller.ask("GET", _PAGE)
        calls_s.append(time.monotonic() - asked)
    return {"calls_s": calls_s}


def main() -> int:
    what = {"answer": answer, "submit": submit, "look": look}[sys.argv[1]]
    found = what(*sys.argv[2:])  # type: ignore[operator]
    if found is None:
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
