#!/usr/bin/env python3
"""What a bought machine runs first, whoever sold it: fetches the agent, keeps it running, powers off when it is done.

Python 3.9's standard library alone. `booting.first_program` fills in SETTINGS, which may say what the machine's rank is
(PERDURE_RANK). Where all machines of an attempt get the same program, it says who tells them (PERDURE_RANK_FROM).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import subprocess
import sys
import time
from typing import Callable  # noqa: UP035 (Python 3.9)
from urllib.parse import urlsplit

SETTINGS: dict[str, str] = {}
GIVE_UP_S = 900  # no controller for so long: the machine is of no use, and ends


def connect(url: str, pin: str | None) -> http.client.HTTPConnection:
    """With `pin`, the one certificate is looked at, before anything is said; no authority, name or date matters."""
    where = urlsplit(url)
    if where.scheme != "https":
        return http.client.HTTPConnection(where.netloc, timeout=30)
    context = ssl.create_default_context()
    if pin:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(where.netloc, timeout=30, context=context)
    connection.connect()
    shown = connection.sock.getpeercert(True) or b""
    if pin and hashlib.sha256(shown).hexdigest() != pin:
        raise OSError("another certificate than the controller's")
    return connection


def call(method: str, url: str, headers: dict[str, str], pin: str | None = None) -> bytes:
    connection = connect(url, pin)
    connection.request(method, urlsplit(url).path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise OSError(f"{url} answered {answer.status}")
    return body


def ec2_launch_index() -> str:
    imds = os.environ.get("PERDURE_METADATA_ENDPOINT", "http://169.254.169.254")
    token = call("PUT", f"{imds}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}).decode()
    return call("GET", f"{imds}/latest/meta-data/ami-launch-index", {"X-aws-ec2-metadata-token": token}).decode()


def gce_name_ending() -> str:
    """The last word of the machine's name."""
    metadata = os.environ.get("PERDURE_METADATA_ENDPOINT", "http://metadata.google.internal")
    name = call("GET", f"{metadata}/computeMetadata/v1/instance/name", {"Metadata-Flavor": "Google"}).decode()
    return name.rpartition("-")[2]


RANKS = {"ec2": ec2_launch_index, "gce": gce_name_ending}


def fetch_agent(path: str) -> None:
    env = os.environ
    if "PERDURE_RANK" not in env:
        env["PERDURE_RANK"] = RANKS[env["PERDURE_RANK_FROM"]]()
    headers = {"Authorization": f"Bearer {env['PERDURE_TOKEN']}", "Perdure-Rank": env["PERDURE_RANK"]}
    url = f"{env['PERDURE_ENDPOINT']}/agent/v1/artifacts/{env['PERDURE_AGENT']}"
    agent = call("GET", url, headers, env.get("PERDURE_FINGERPRINT"))
    if hashlib.sha256(agent).hexdigest() != env["PERDURE_AGENT"]:
        raise OSError("another agent than the controller's came")
    with open(path, "wb") as file:
        file.write(agent)


def succeeds(do: Callable[[], None], until: float) -> bool:
    """Try again and again, until then (monotonic seconds)."""
    while time.monotonic() < until:
        try:
            do()
            return True
        except (OSError, http.client.HTTPException) as error:
            print(f"perdure: {error}", flush=True)  # noqa: T201
            time.sleep(1)  # noqa: TID251 - a machine has nothing else to do
    return False


def main() -> None:
    if os.fork():
        return  # what boots the machine goes on booting it
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
