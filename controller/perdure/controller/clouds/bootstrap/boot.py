#!/usr/bin/env python3
"""The first program of a cloud machine: fetches the agent, keeps it running and powers off when the agent is done.

The agent (`perdure.agent.main`) connects to `nodes.session` of the controller. Uses only Python 3.9's standard library.
`render.render_boot_program` fills in UNIT and SETTINGS. Those contain the machine's rank (PERDURE_RANK) or, where all
machines of an attempt get the same program, how to find it (PERDURE_RANK_FROM).

Under systemd the agent is a unit, perdure-agent.service. It is stopped before the network and the mounts are, so that
a power-off reaches it in time. Elsewhere this program supervises the agent itself.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from typing import Callable  # noqa: UP035 (Python 3.9)
from urllib.parse import urlsplit

SETTINGS: dict[str, str] = {}
UNIT = ""
UNIT_NAME = "perdure-agent.service"
RUN_DIR = "/run/perdure"
UNIT_DIR = "/run/systemd/system"
PER_BOOT = "/var/lib/cloud/scripts/per-boot/perdure"
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
    connection, where = connect(url, pin), urlsplit(url)
    connection.request(method, f"{where.path}?{where.query}" if where.query else where.path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise OSError(f"{url} returned {response.status}")
    return body


def read_metadata(source: str) -> str:
    """A value of the metadata service. `source`: a `render.RankSource` as JSON."""
    fields = json.loads(source)
    endpoint, headers = os.environ.get("PERDURE_METADATA_ENDPOINT", fields["endpoint"]), fields["headers"]
    if fields["token_path"]:
        token = call("PUT", f"{endpoint}{fields['token_path']}", fields["token_headers"])
        headers = {**headers, fields["token_header"]: token.decode()}
    return call("GET", f"{endpoint}{fields['path']}", headers).decode()


def read_rank(source: str) -> str:
    """The rank at the end of a value of the metadata service."""
    return read_metadata(source).rpartition("-")[2]


def find_rank() -> None:
    if "PERDURE_RANK" not in os.environ:
        os.environ["PERDURE_RANK"] = read_rank(os.environ["PERDURE_RANK_FROM"])


def fetch_agent(path: str) -> None:
    env = os.environ
    headers = {"Authorization": f"Bearer {env['PERDURE_TOKEN']}", "Perdure-Rank": env["PERDURE_RANK"]}
    url = f"{env['PERDURE_ENDPOINT']}/agent/v1/artifacts/{env['PERDURE_AGENT']}"
    agent = call("GET", url, headers, env.get("PERDURE_FINGERPRINT"))
    if hashlib.sha256(agent).hexdigest() != env["PERDURE_AGENT"]:
        raise OSError("the agent does not match its digest")
    with open(path, "wb") as file:
        file.write(agent)


def succeeds(do: Callable[[], None], until: float) -> bool:
    """Repeat `do` until it succeeds or the time is `until` (monotonic seconds). Prints each new error once."""
    last_error = ""
    while time.monotonic() < until:
        try:
            do()
            return True
        except (OSError, ValueError, http.client.HTTPException) as error:
            if str(error) != last_error:
                print(f"perdure: {error}", flush=True)  # noqa: T201
            last_error = str(error)
            time.sleep(1)  # noqa: TID251 - the machine has nothing else to do
    return False


def has_agent(path: str) -> bool:
    """Whether the agent is here. A restart needs no controller."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == os.environ["PERDURE_AGENT"]
    except OSError:
        return False


def prepare() -> str | None:
    """The path of the agent, which is fetched if necessary. None if no controller answered for GIVE_UP_S."""
    os.environ.setdefault("HOME", "/root")
    home = os.environ.setdefault("PERDURE_STATE_DIR", "/var/lib/perdure")
    os.makedirs(home, exist_ok=True)
    path = os.path.join(home, "agent.pyz")
    until = time.monotonic() + GIVE_UP_S
    if not succeeds(find_rank, until):
        return None
    return path if has_agent(path) or succeeds(lambda: fetch_agent(path), until) else None


def run_at_every_boot() -> None:
    """Have cloud-init run this file at every later boot as well: at the first, it has run the user data."""
    try:
        os.makedirs(os.path.dirname(PER_BOOT), exist_ok=True)
        shutil.copyfile(__file__, PER_BOOT)
        os.chmod(PER_BOOT, 0o700)
    except OSError as error:
        print(f"perdure: this machine cannot be started again: {error}", flush=True)  # noqa: T201


def run_user_data() -> None:
    """Replace this process by the user data that the machine has at this boot."""
    path = os.path.join(RUN_DIR, "user-data.py")
    os.makedirs(RUN_DIR, mode=0o700, exist_ok=True)

    def fetch() -> None:
        program = read_metadata(SETTINGS["PERDURE_USER_DATA_FROM"])
        with open(path, "w") as file:  # some clouds return it as it was sent
            file.write(program if program.startswith("#!") else base64.b64decode(program).decode())

    if succeeds(fetch, time.monotonic() + GIVE_UP_S):
        os.execv(sys.executable, [sys.executable, path])  # noqa: S606
    power_off()


def start_unit() -> bool:
    """Start this program as a unit of its own. False if this machine has no systemd, or it refuses."""
    if not os.path.isdir(UNIT_DIR):
        return False
    os.makedirs(RUN_DIR, mode=0o700, exist_ok=True)
    shutil.copyfile(__file__, os.path.join(RUN_DIR, "boot.py"))
    with open(os.path.join(UNIT_DIR, UNIT_NAME), "w") as file:
        file.write(UNIT)
    # It must not wait: this program may run before the units that the agent's unit waits for.
    commands = (["daemon-reload"], ["start", "--no-block", UNIT_NAME])
    return all(subprocess.call(["systemctl", *command]) == 0 for command in commands)


def become_agent() -> None:
    """Replace this process by the agent, or end with 0 if no controller answers."""
    path = prepare()
    if path is not None:
        os.execv(sys.executable, [sys.executable, path])  # noqa: S606


def power_off() -> None:
    subprocess.call(["sh", "-c", os.environ.get("PERDURE_POWER_OFF", "shutdown -h now")])


def is_stopping() -> bool:
    """Whether systemd is stopping the machine already: a power-off must not replace a reboot."""
    state = subprocess.run(["systemctl", "is-system-running"], stdout=subprocess.PIPE, check=False)
    return state.stdout.strip() == b"stopping"


def supervise() -> None:
    """Keep the agent running until it is done, then power off."""
    with contextlib.suppress(PermissionError):  # it leads a session or a group already: a container's first process
        os.setsid()
    path = prepare()
    if path is not None:
        while subprocess.call([sys.executable, path]):
            time.sleep(1)  # noqa: TID251
    power_off()


def main() -> None:
    os.umask(0o077)
    os.environ.update(SETTINGS)
    role = "".join(sys.argv[1:])
    if os.path.exists(PER_BOOT) and os.path.samefile(__file__, PER_BOOT):
        return run_user_data()
    if not role and "PERDURE_USER_DATA_FROM" in SETTINGS:
        run_at_every_boot()
    if role == "agent":
        become_agent()
    elif role == "stopped":
        if os.environ.get("SERVICE_RESULT") == "success" and not is_stopping():
            power_off()
    elif "PERDURE_FOREGROUND" in SETTINGS or not (start_unit() or os.fork()):
        supervise()


if __name__ == "__main__":
    main()
