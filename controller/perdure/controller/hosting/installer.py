#!/usr/bin/env python3
"""The program of a controller's machine: receives Perdure once, from the user who provisions it, and keeps it running.

It uses only the standard library of Python 3.11. `bundle.render_installer` fills in SETTINGS. It receives a bundle (a
zip): a wheel, `config.yaml`, and `bundle.json`, which says how to install the wheel. Everything is kept in the
controller's home, on the disk that outlives the machine:

software/<digest>/   one folder per installation; the file `complete` in it is written last
software/current     a link to the installation that runs
software/installed   the digest of the secret of the machine that has received its bundle: each accepts only one
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
MAX_BUNDLE_BYTES = 64 * 2**20
BLOCK_BYTES = 64 * 1024
RESTART_DELAY_S = 1.0
LOCK = "perdure/controller/hosting/requirements.lock"  # in the wheel: every package, with hashes
COMMAND_TIMEOUT_S = 1200.0


class CannotInstall(Exception):
    """The bundle cannot be installed. Nothing has changed."""


def install(home: str, bundle: str) -> dict[str, Any]:
    """Install the bundle file; its software runs from the next start on. Returns what its `credentials` command prints.

    The previous installation is kept in case the new one does not start. Raises CannotInstall.
    """
    software = os.path.join(home, "software")
    os.makedirs(software, 0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=software, prefix=".new-") as folder:
        try:
            with zipfile.ZipFile(bundle) as archive:
                manifest = json.loads(archive.read("bundle.json"))
                wheel, config = os.path.basename(manifest["wheel"]), archive.read("config.yaml")
                archive.extract(wheel, folder)
        except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise CannotInstall(f"this is not a Perdure bundle: {error}") from error
        with open(os.path.join(folder, wheel), "rb") as file:
            name = hashlib.sha256(file.read()).hexdigest()[:16]
        installation = os.path.join(software, name)
        if not os.path.exists(os.path.join(installation, "complete")):
            shutil.rmtree(installation, ignore_errors=True)
            _install_wheel(os.path.join(folder, wheel), installation, manifest)
    return _activate(home, installation, config)


def _install_wheel(wheel: str, installation: str, manifest: dict[str, Any]) -> None:
    if manifest["dependencies"] == "host":  # this computer has them: only the code is missing
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(os.path.join(installation, "lib"))
    else:
        venv = os.path.join(installation, "venv")
        _run([sys.executable, "-m", "venv", venv])
        pip = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        with zipfile.ZipFile(wheel) as archive:
            lock = archive.extract(LOCK, os.path.dirname(wheel))
        _run([*pip, "--require-hashes", "--requirement", lock])
        _run([*pip, "--no-deps", wheel])
    with open(os.path.join(installation, "complete"), "w") as file:
        file.flush()
        os.fsync(file.fileno())


def _activate(home: str, installation: str, config: bytes) -> dict[str, Any]:
    """Switch to the new configuration and software, if that software accepts the configuration.

    Returns what its `credentials` command prints. Raises CannotInstall, with nothing changed.
    """
    path = os.path.join(home, "config.yaml")
    before = None
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        before = file.read()
    _write(path, config)
    try:
        output = _run([*_program(installation), "credentials", "--home", home], installation)
        credentials: dict[str, Any] = json.loads(output)
    except (CannotInstall, ValueError) as error:
        os.remove(path) if before is None else _write(path, before)
        raise CannotInstall(str(error)) from error
    link = os.path.join(home, "software", "current")
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"{link}.new")
    os.symlink(os.path.basename(installation), f"{link}.new")
    previous = os.path.realpath(link)
    os.rename(f"{link}.new", link)
    _remove_all_except(os.path.dirname(link), {installation, previous})
    return credentials


def _remove_all_except(software: str, keep: set[str]) -> None:
    """Remove unused installations. The previous one is in use until the daemon has ended."""
    for entry in list(os.scandir(software)):
        is_old = os.path.exists(os.path.join(entry.path, "complete")) and not entry.is_symlink()
        if is_old and os.path.realpath(entry.path) not in {os.path.realpath(path) for path in keep}:
            shutil.rmtree(entry.path, ignore_errors=True)


def _program(installation: str) -> list[str]:
    venv = os.path.join(installation, "venv", "bin", "python")
    return [venv if os.path.exists(venv) else sys.executable, "-P", "-m", "perdure.controller"]


def _environment(installation: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    library = os.path.join(installation, "lib")
    return {**env, "PYTHONPATH": library} if os.path.isdir(library) else env


def _run(command: list[str], installation: str = "") -> str:
    """The command's output. Raises CannotInstall if it fails."""
    try:
        process = subprocess.run(
            command,
            env=_environment(installation),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{os.path.basename(command[0])} {' '.join(command[1:4])}: {error}") from error
    if process.returncode:
        output = (process.stderr or process.stdout).strip()[-2000:]
        raise CannotInstall(f"{os.path.basename(command[0])} {' '.join(command[1:4])}: {output}")
    return process.stdout


def _write(path: str, content: bytes) -> None:
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


class InstallHandler(BaseHTTPRequestHandler):
    """Accepts one PUT of a bundle with the secret; responds with what its `credentials` command prints."""

    timeout = 60.0
    lock = threading.Lock()
    is_installed = False

    def do_PUT(self) -> None:
        authorization = self.headers.get("Authorization", "").encode()
        length = self.headers.get("Content-Length", "")
        if not hmac.compare_digest(authorization, f"Bearer {SETTINGS['secret']}".encode()):
            return self._reject(401, "the secret is missing or wrong")
        if not length.isdigit() or int(length) > MAX_BUNDLE_BYTES:
            return self._reject(413, f"a bundle may have {MAX_BUNDLE_BYTES} bytes at most")
        with self.lock:
            if InstallHandler.is_installed:
                return self._reject(409, "the software is already installed")
            try:
                with tempfile.NamedTemporaryFile(dir=SETTINGS["home"], prefix=".bundle-") as bundle:
                    bundle.write(self.rfile.read(int(length)))
                    bundle.flush()
                    credentials = install(SETTINGS["home"], bundle.name)
            except (CannotInstall, OSError) as error:
                return self._respond(400, {"error": str(error)})
            _write(os.path.join(SETTINGS["home"], "software", "installed"), _secret_digest())
            InstallHandler.is_installed = True
        self._respond(200, credentials)
        threading.Thread(target=self.server.shutdown, daemon=True).start()
        return None

    def log_message(self, *_: Any) -> None:
        """Log nothing: anybody on the network may send any number of requests."""

    def _reject(self, status: int, why: str) -> None:
        """Read the body before responding: a client that is still sending would see only a closed connection."""
        length = self.headers.get("Content-Length", "")
        remaining = min(int(length), MAX_BUNDLE_BYTES) if length.isdigit() else 0
        while remaining > 0 and (block := self.rfile.read(min(remaining, BLOCK_BYTES))):
            remaining -= len(block)
        self._respond(status, {"error": why})

    def _respond(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def receive_bundle() -> None:
    """Serve until a bundle is installed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory(dir=SETTINGS["home"], prefix=".tls-") as folder:
        pem = os.path.join(folder, "server.pem")
        _write(pem, (SETTINGS["key"] + SETTINGS["certificate"]).encode())
        context.load_cert_chain(pem)
    with ThreadingHTTPServer((SETTINGS["host"], int(SETTINGS["port"])), InstallHandler) as server:
        # Each handler thread does its own handshake, so a client that sends nothing does not block the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.serve_forever(poll_interval=0.2)


def _secret_digest() -> bytes:
    return hashlib.sha256(SETTINGS["secret"].encode()).hexdigest().encode()


def _has_installed() -> bool:
    try:
        with open(os.path.join(SETTINGS["home"], "software", "installed"), "rb") as file:
            return file.read() == _secret_digest()
    except FileNotFoundError:
        return False


def keep_running(stopping: threading.Event) -> None:
    """Run the daemon, and start it again whenever it ends: after an upgrade, or a crash."""
    home = SETTINGS["home"]
    while not stopping.is_set():
        installation = os.path.realpath(os.path.join(home, "software", "current"))
        env = {**_environment(installation), "PERDURE_SOFTWARE": os.path.join(home, "software")}
        daemon = subprocess.Popen([*_program(installation), "serve", "--home", home], env=env, cwd=home)
        while daemon.poll() is None:
            if stopping.wait(0.2):
                daemon.terminate()
                daemon.wait()
        stopping.wait(RESTART_DELAY_S if daemon.returncode else 0.0)


def main() -> None:
    os.umask(0o077)
    os.makedirs(SETTINGS["home"], 0o700, exist_ok=True)
    stopping = threading.Event()

    def stop(*_: Any) -> None:
        stopping.set()
        if not _has_installed():
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if not _has_installed():
        receive_bundle()
    started = time.monotonic()
    keep_running(stopping)
    print(f"perdure: ended after {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
