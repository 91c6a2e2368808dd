"""A user, as a process: `python -m benchmarks.scale.user HOME PATIENCE_S` prints when a daemon on HOME first answered.

Threads of the load generator would wait for it, which has ten thousand machines to think of at that moment.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path


def main() -> int:
    """`{"at": seconds of the monotonic clock, "pid": of the daemon, "port"}`; nothing if it does not answer in time."""
    told, give_up_at = Path(sys.argv[1]) / "controller.json", time.monotonic() + float(sys.argv[2])
    while time.monotonic() < give_up_at:
        try:
            found = json.loads(told.read_text())
            port = int(found["endpoint"].rsplit(":", 1)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                print(json.dumps({"at": time.monotonic(), "pid": found["pid"], "port": port}))
                return 0
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    return 1


if __name__ == "__main__":
    sys.exit(main())
