#!/usr/bin/env python3
"""What a controller's machine runs: takes Perdure in once, from whoever brought the machine up, and keeps it running.

Python 3.11's standard library alone. `packing.first_program` fills in SETTINGS. What it takes in is a pack (a zip): a
wheel, `config.yaml`, and `pack.json`, which says how the wheel is installed. All lies in the controller's home, on the
disk that outlives the machine:

software/<digest>/   one installation each; `complete` in it is written last
software/current     a link to the one that runs
software/taken       which machine has taken its software in: one push each, and the door is shut
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SETTINGS: dict[str, str] = {}
MOST_BYTES = 64 * 2**20
BLOCK_BYTES = 64 * 1024
AGAIN_S = 1.0
CHECK_S = 120.0


class CannotInstall(Exception):
    """What came can not be used. Nothing has changed."""


def install(home: str, pack: str) -> dict[str, Any]:
    """Make what the file `pack` holds the software that runs next; what `credentials` of it says. Raises CannotInstall.

    The software that was there before stays, should this one not start.
    """
    software = os.path.join(home, "software")
    os.makedirs(software, 0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=software, prefix=".new-") as folder:
        try:
            with zipfile.ZipFile(pack) as archive:
                told = json.loads(archive.read("pack.json"))
                wheel, config = os.path.basename(told["wheel"]), archive.read("config.yaml")
                archive.extract(wheel, folder)
        except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise CannotInstall(f"this is no pack of perdure: {error}") from error
        with open(os.path.join(folder, wheel), "rb") as file:
            name = hashlib.sha256(file.read()).hexdigest()[:16]
        place = os.path.join(software, name)
        if not os.path.exists(os.path.join(place, "complete")):
            shutil.rmtree(place, ignore_errors=True)
            _unpack(os.path.join(folder, wheel), place, told)
    return _switch(home, place, config)


def _unpack(wheel: str, place: str, told: dict[str, Any]) -> None:
    if told["dependencies"] == "host":  # this computer has them: the code alone is missing
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(os.path.join(place, "lib"))
    else:
        venv = os.path.join(place, "venv")
        _call([sys.executable, "-m", "venv", venv])
        wanted = f"{wheel}[{told['extras']}]"
        _call([os.path.join(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", wanted])
    with open(os.path.join(place, "complete"), "w") as file:
        file.flush()
        os.fsync(file.fileno())


def _switch(home: str, place: str, config: bytes) -> dict[str, Any]:
    """To the new configuration and software, if the software can read it and says its credentials."""
    path = os.path.join(home, "config.yaml")
    before = None
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        before = file.read()
    _write(path, config)
    try:
        said: dict[str, Any] = json.loads(_call([*_program(place), "credentials", "--home", home], place))
    except (CannotInstall, ValueError) as error:
        os.remove(path) if before is None else _write(path, before)
        raise CannotInstall(str(error)) from error
    link = os.path.join(home, "software", "current")
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"{link}.new")
    os.symlink(os.path.basename(place), f"{link}.new")
    before_place = os.path.realpath(link)
    os.rename(f"{link}.new", link)
    _forget_all_but(os.path.dirname(link), {place, before_place})
    return said


def _forget_all_but(software: str, kept: set[str]) -> None:
    """Installations that nothing runs from: the one before runs until the daemon has ended."""
    for entry in list(os.scandir(software)):
        is_old = os.path.exists(os.path.join(entry.path, "complete")) and not entry.is_symlink()
        if is_old and os.path.realpath(entry.path) not in {os.path.realpath(one) for one in kept}:
            shutil.rmtree(entry.path, ignore_errors=True)


def _program(place: str) -> list[str]:
    venv = os.path.join(place, "venv", "bin", "python")
    return [venv if os.path.exists(venv) else sys.executable, "-P", "-m", "perdure.controller"]


def _environment(place: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    library = os.path.join(place, "lib")
    return {**env, "PYTHONPATH": library} if os.path.isdir(library) else env


def _call(command: list[str], place: str = "") -> str:
    try:
        done = subprocess.run(
            command, env=_environment(place), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=CHECK_S * 10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{os.path.basename(command[0])} {' '.join(command[1:4])}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise CannotInstall(f"{os.path.basename(command[0])} {' '.join(command[1:4])}: {said}")
    return done.stdout


def _write(path: str, content: bytes) -> None:
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


class Door(BaseHTTPRequestHandler):
    """One PUT of a pack by who knows the secret; the answer is what its `credentials` says."""

    timeout = 60.0
    lock = threading.Lock()
    is_shut = False

    def do_PUT(self) -> None:
        given = self.headers.get("Authorization", "").encode()
        length = self.headers.get("Content-Length", "")
        if not hmac.compare_digest(given, f"Bearer {SETTINGS['secret']}".encode()):
            return self._refuse(401, "the secret is missing or wrong")
        if not length.isdigit() or int(length) > MOST_BYTES:
            return self._refuse(413, f"a pack has {MOST_BYTES} bytes at most")
        with self.lock:
            if Door.is_shut:
                return self._refuse(409, "the software is taken in already")
            try:
                with tempfile.NamedTemporaryFile(dir=SETTINGS["home"], prefix=".pack-") as pack:
                    pack.write(self.rfile.read(int(length)))
                    pack.flush()
                    said = install(SETTINGS["home"], pack.name)
            except (CannotInstall, OSError) as error:
                return self._answer(400, {"error": str(error)})
            _write(os.path.join(SETTINGS["home"], "software", "taken"), _mark())
            Door.is_shut = True
        self._answer(200, said)
        threading.Thread(target=self.server.shutdown, daemon=True).start()
        return None

    def log_message(self, *_: Any) -> None:
        """Nothing: strangers may knock as often as they like."""

    def _refuse(self, status: int, why: str) -> None:
        """The pack is read all the same: to whoever still sends, an end of the connection is no answer."""
        length = self.headers.get("Content-Length", "")
        left = min(int(length), MOST_BYTES) if length.isdigit() else 0
        while left > 0 and (block := self.rfile.read(min(left, BLOCK_BYTES))):
            left -= len(block)
        self._answer(status, {"error": why})

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def take_in() -> None:
    """Wait at the door until the software has come."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory(dir=SETTINGS["home"], prefix=".door-") as folder:
        pem = os.path.join(folder, "door.pem")
        _write(pem, (SETTINGS["key"] + SETTINGS["certificate"]).encode())
        context.load_cert_chain(pem)
    with ThreadingHTTPServer((SETTINGS["host"], int(SETTINGS["port"])), Door) as server:
        # The handshake is the handler's own: who connects and says nothing keeps nobody else out.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.serve_forever(poll_interval=0.2)


def _mark() -> bytes:
    return hashlib.sha256(SETTINGS["secret"].encode()).hexdigest().encode()


def _has_taken() -> bool:
    try:
        with open(os.path.join(SETTINGS["home"], "software", "taken"), "rb") as file:
            return file.read() == _mark()
    except FileNotFoundError:
        return False


def keep_running(stopping: threading.Event) -> None:
    """The daemon, again and again: one that ends has been upgraded, or has crashed."""
    home = SETTINGS["home"]
    while not stopping.is_set():
        place = os.path.realpath(os.path.join(home, "software", "current"))
        env = {**_environment(place), "PERDURE_SOFTWARE": os.path.join(home, "software")}
        daemon = subprocess.Popen([*_program(place), "serve", "--home", home], env=env, cwd=home)
        while daemon.poll() is None:
            if stopping.wait(0.2):
                daemon.terminate()
                daemon.wait()
        stopping.wait(AGAIN_S if daemon.returncode else 0.0)


def main() -> None:
    os.umask(0o077)
    os.makedirs(SETTINGS["home"], 0o700, exist_ok=True)
    stopping = threading.Event()

    def stop(*_: Any) -> None:
        stopping.set()
        if not _has_taken():
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if not _has_taken():
        take_in()
    started = time.monotonic()
    keep_running(stopping)
    print(f"perdure: ended after {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
