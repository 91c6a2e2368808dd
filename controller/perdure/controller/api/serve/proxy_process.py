"""One HAProxy as a supervised child: it is started again whenever it ends, and knows which replicas get requests.

The daemon holds the listening socket, so that nobody is refused while HAProxy is away: connections wait in its queue.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from perdure.controller.api.serve import haproxy_config, haproxy_socket
from perdure.controller.api.serve.haproxy_config import BACKEND, CERTIFICATE, server_name
from perdure.controller.api.serve.haproxy_socket import CommandFailed, ServerCounts
from perdure.controller.maintenance.serve.proxy_state import ProxySettings

log = structlog.get_logger(__name__)

BACKLOG = 1024
START_TIMEOUT_S = 10.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0
LASTING_S = 5.0  # a process that has lived for so long is started again at once
_POLL_S = 0.01
_MAX_OUTPUT_BYTES, _MAX_ALERTS = 64 * 1024, 2
_SEARCH_PATH = os.defpath + ":/usr/local/sbin:/usr/sbin:/sbin"


def find_haproxy() -> str | None:
    """The path of HAProxy; None if it is not installed."""
    return shutil.which("haproxy") or shutil.which("haproxy", path=_SEARCH_PATH)


def listen(host: str, port: int) -> socket.socket:
    """The listening socket of an endpoint. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class ProxyProcess:
    """`folder`: for its sockets and its configuration; nobody else can read it. `log_path`: of its output."""

    def __init__(
        self,
        program: str,
        settings: ProxySettings,
        folder: Path,
        listener: socket.socket,
        log_path: Path,
        *,
        number: int = 0,
    ) -> None:
        """`number`: distinguishes it from others in the same folder, which it replaces."""
        self.settings = settings
        self._admin = folder / f"admin-{number}.sock"
        self._program = program
        self._folder = folder
        self._listener = listener
        self._log_path = log_path
        self._lock = threading.Lock()
        self._wanted: dict[int, int] = {}  # slot → weight, of the replicas that get requests
        self._applied: dict[int, int] = {}  # the same, as HAProxy knows it
        self._process: subprocess.Popen[bytes] | None = None
        self._is_up = False
        self._is_stopped = threading.Event()
        self._problem = "its proxy is being started"
        self._log_offset = 0  # where the output of the newest process begins
        # Its own thread starts HAProxy and waits for it: the kernel ends HAProxy with the thread that started it.
        self._thread = threading.Thread(target=self._run, name=f"proxy {settings.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait for that."""
        self._is_stopped.set()
        self._signal()
        if self._thread.is_alive():
            self._thread.join()

    def retire(self) -> None:
        """Take no more connections, and end when those that are open have ended. Returns at once."""
        self._is_stopped.set()
        self._signal(signal.SIGUSR1)

    @property
    def problem(self) -> str:
        """Why it does not run; "" if it does."""
        return "" if self._is_up else self._problem

    @property
    def pid(self) -> int | None:
        """Its process; None if there is none now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def serve(self, weights: Mapping[int, int]) -> None:
        """Send requests to exactly these slots, with these weights. Requests under way go on in any case."""
        with self._lock:
            self._wanted = dict(weights)
            self._sync()

    def renew(self, settings: ProxySettings) -> bool:
        """Serve another certificate to new connections. False if more than that has changed, or HAProxy refuses it."""
        same = replace(settings, tls_key=self.settings.tls_key, tls_cert=self.settings.tls_cert)
        if same != self.settings or not (settings.tls_cert and self.settings.tls_cert):
            return False
        with self._lock:
            before, self.settings = self.settings, settings
            try:
                if self._is_up:
                    path = self._folder / CERTIFICATE
                    lines = [line for line in _pem(settings).splitlines() if line.strip()]
                    haproxy_socket.expect(self._admin, f"set ssl cert {path} <<\n" + "\n".join(lines) + "\n", "created")
                    haproxy_socket.expect(self._admin, f"commit ssl cert {path}", "Success")
                self._write_private(CERTIFICATE, _pem(settings))
            except (CommandFailed, OSError) as error:
                log.warning("proxy.certificate_not_changed", service=settings.name, error=str(error))
                self.settings = before
                return False
        log.info("proxy.certificate_changed", service=settings.name)
        return True

    @property
    def serving(self) -> Mapping[int, int]:
        """Slot → weight, of the replicas that get requests."""
        return self._wanted

    def counts(self) -> list[ServerCounts]:
        """The load of all servers; empty while it does not run."""
        if not self._is_up:
            return []
        try:
            return haproxy_socket.counts(self._admin)
        except CommandFailed as error:
            log.info("proxy.no_answer", service=self.settings.name, error=str(error))
            return []

    def _sync(self) -> None:
        """Tell HAProxy what has changed. Call with the lock. What fails is done when it has started again."""
        if not self._is_up or self._wanted == self._applied:
            return
        commands = []
        for slot, weight in self._wanted.items():
            if self._applied.get(slot) != weight:
                commands.append(f"set server {BACKEND}/{server_name(slot)} weight {weight}")
            if slot not in self._applied:
                commands.append(f"set server {BACKEND}/{server_name(slot)} state ready")
        for slot in self._applied.keys() - self._wanted.keys():  # last, so that there is one at any time
            commands.append(f"set server {BACKEND}/{server_name(slot)} state maint")
        try:
            for command in commands:
                haproxy_socket.change(self._admin, command)
        except CommandFailed as error:
            log.warning("proxy.not_changed", service=self.settings.name, error=str(error))
            self._signal()
            return
        self._applied = dict(self._wanted)

    def _run(self) -> None:
        pause_s = MIN_PAUSE_S
        while not self._is_stopped.is_set():
            began = time.monotonic()
            try:
                self._run_once()
            except (OSError, ValueError) as error:  # ValueError: a certificate may hold what is no text
                words = self._last_alerts()
                self._problem = f"its proxy cannot be started: {error}{f': {words}' if words else ''}"
            lasted_s = time.monotonic() - began
            pause_s = MIN_PAUSE_S if lasted_s >= LASTING_S else min(2 * pause_s, MAX_PAUSE_S)
            if not self._is_stopped.is_set():
                log.warning("proxy.ended", service=self.settings.name, lasted_s=round(lasted_s, 1), why=self._problem)
                self._is_stopped.wait(pause_s)

    def _run_once(self) -> None:
        """Start HAProxy, and wait for its end. Raises OSError."""
        with self._lock:
            weights = dict(self._wanted)
            self._write_files(weights)
            self._admin.unlink(missing_ok=True)
        with open(self._log_path, "ab", opener=_open_private) as output:
            self._log_offset = output.tell()
            process = subprocess.Popen(
                [*_dies_with_us(), self._program, "-db", "-f", str(self._folder / "haproxy.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(self._listener.fileno(),),
                cwd="/",
            )
        self._process = process
        try:
            self._await_start(process)
            with self._lock:
                self._applied, self._is_up = weights, True
                self._sync()
            process.wait()
        finally:
            self._is_up = False
            if process.poll() is None:
                process.kill()
            code = process.wait()
            words = self._last_alerts()
            suffix = f": {words}" if words else ""
            self._problem = f"its proxy has ended with code {code}{suffix}; its log is {self._log_path}"

    def _last_alerts(self) -> str:
        """What the newest HAProxy has said of why it cannot run, in one line; "" if it has said nothing."""
        with suppress(OSError), open(self._log_path, "rb") as log_file:
            log_file.seek(self._log_offset)
            lines = log_file.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace").splitlines()
            alerts = [line.partition(" : ")[2].strip() for line in lines if line.startswith("[ALERT]")]
            return " | ".join("".join(c for c in line if c.isprintable()) for line in alerts[:_MAX_ALERTS])
        return ""

    def _await_start(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until HAProxy answers. Raises OSError."""
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and not self._is_stopped.is_set():
            with suppress(CommandFailed):
                haproxy_socket.run(self._admin, "show version")
                return
            if time.monotonic() >= give_up_at:
                raise OSError(f"HAProxy does not answer within {START_TIMEOUT_S:.0f} s")
            self._is_stopped.wait(_POLL_S)
        raise OSError(f"HAProxy has ended with code {process.poll()} at its start")

    def _write_files(self, weights: Mapping[int, int]) -> None:
        settings = self.settings
        text = haproxy_config.render(settings, self._folder, self._admin, self._listener.fileno(), weights)
        self._write_private("haproxy.cfg", text)
        if settings.tls_cert:
            self._write_private(CERTIFICATE, _pem(settings))

    def _write_private(self, name: str, content: str) -> None:
        with open(self._folder / name, "w", encoding="utf-8", opener=_open_private) as file:
            file.write(content)

    def _signal(self, number: int = signal.SIGKILL) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)


def _pem(settings: ProxySettings) -> str:
    return f"{settings.tls_cert}\n{settings.tls_key}\n"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _dies_with_us() -> list[str]:
    """A command that has the next one killed when the daemon is. Without it, the next daemon ends what is left."""
    setpriv = shutil.which("setpriv") or shutil.which("setpriv", path=_SEARCH_PATH)
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
