#!/usr/bin/env python3
"""The first program of a cloud machine: fetches the agent, keeps it running and powers off when the agent is done.

The agent (`perdure.agent.main`) connects to `nodes.session` of the controller. Uses only Python 3.9's standard library.
`render.render_boot_program` fills in SETTINGS. They contain the machine's rank (PERDURE_RANK) or, where all machines of
an attempt get the same program, how to find it (PERDURE_RANK_FROM).
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from typing import Callable  # noqa: UP035 (Python 3.9)
from urllib.parse import urlsplit

SETTINGS: dict[str, str] = {}
GIVE_UP_S = 900  # without a controller for this long, the machine powers off


def connect(url: str, pin: str | None) -> http.client.HTTPConnection:
    """With `pin`, verify the certificate by its fingerprint alone, before sending anything."""
    where = urlsplit(url)
    if where.scheme != "https":
        return http.client.HTTPConnection(where.netloc, timeout=30)
    context = ssl.create_default_context()
    if pin:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(where.netloc, timeout=30, context=context)
    connection.connect()
    certificate = connection.sock.getpeercert(True) or b""
    if pin and hashlib.sha256(certificate).hexdigest() != pin:
        raise OSError("the certificate is not the controller's")
    return connection


def call(method: str, url: str, headers: dict[str, str], pin: str | None = None) -> bytes:
    connection = connect(url, pin)
    connection.request(method, urlsplit(url).path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise OSError(f"{url} returned {response.status}")
    return body


def read_rank(source: str) -> str:
    """The rank at the end of a value of the metadata service. `source`: a `render.RankSource` as JSON."""
    fields = json.loads(source)
    endpoint, headers = os.environ.get("PERDURE_METADATA_ENDPOINT", fields["endpoint"]), fields["headers"]
    if fields["token_path"]:
        token = call("PUT", f"{endpoint}{fields['token_path']}", fields["token_headers"])
        headers = {**headers, fields["token_header"]: token.decode()}
    return call("GET", f"{endpoint}{fields['path']}", headers).decode().rpartition("-")[2]


def fetch_agent(path: str) -> None:
    env = os.environ
    if "PERDURE_RANK" not in env:
        env["PERDURE_RANK"] = read_rank(env["PERDURE_RANK_FROM"])
    headers = {"Authorization": f"Bearer {env['PERDURE_TOKEN']}", "Perdure-Rank": env["PERDURE_RANK"]}
    url = f"{env['PERDURE_ENDPOINT']}/agent/v1/artifacts/{env['PERDURE_AGENT']}"
    agent = call("GET", url, headers, env.get("PERDURE_FINGERPRINT"))
    if hashlib.sha256(agent).hexdigest() != env["PERDURE_AGENT"]:
        raise OSError("the agent does not match its digest")
    with open(path, "wb") as file:
        file.write(agent)


def succeeds(do: Callable[[], None], until: float) -> bool:
    """Repeat `do` until it succeeds or the time is `until` (monotonic seconds)."""
    while time.monotonic() < until:
        try:
            do()
            return True
        except (OSError, http.client.HTTPException) as error:
            print(f"perdure: {error}", flush=True)  # noqa: T201
            time.sleep(1)  # noqa: TID251 - the machine has nothing else to do
    return False


def main() -> None:
    if "PERDURE_FOREGROUND" not in SETTINGS and os.fork():
        return  # the machine goes on booting
    with contextlib.suppress(PermissionError):  # it leads a session or a group already: a container's first process
        os.setsid()
    os.umask(0o077)
    os.environ.update(SETTINGS)
    os.environ.setdefault("HOME", "/root")
    home = os.environ.setdefault("PERDURE_STATE_DIR", "/var/lib/perdure")
    os.makedirs(home, exist_ok=True)
    path = os.path.join(home, "agent.pyz")
    if succeeds(lambda: fetch_agent(path), time.monotonic() + GIVE_UP_S):
        while subprocess.call([sys.executable, path]):
            time.sleep(1)  # noqa: TID251
    subprocess.call(["sh", "-c", os.environ.get("PERDURE_POWER_OFF", "shutdown -h now")])


if __name__ == "__main__":
    main()
