"""The proxies of all services of a daemon: for each, a HAProxy and the sockets behind it.

`maintenance.service_watch` says what it wants from its thread; the sockets live on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import structlog

from perdure.controller.api.serve.haproxy_config import BACKEND, FRONTEND, HOLD, server_name
from perdure.controller.api.serve.haproxy_socket import ServerCounts
from perdure.controller.api.serve.peer_streams import OpenStream
from perdure.controller.api.serve.proxy_log import ProxyLogFile
from perdure.controller.api.serve.proxy_process import ProxyProcess, find_haproxy, listen
from perdure.controller.api.serve.upstreams import Upstreams
from perdure.controller.maintenance.serve.proxy_state import ProxyReport, ProxySettings, ProxyState, ProxyTarget
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.market.services.scale import WINDOW_S, Traffic

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

FIRST_PORT, LAST_PORT = 30001, 32000
"""SkyServe's first port, and as many as there may be services."""
LOOP_TIMEOUT_S, OPEN_TIMEOUT_S = 10.0, 10.0
FOLDER_PREFIX = "perdure-serve-"  # of the temporary folder of a daemon's sockets
IDLE_AFTER_S = 1.0  # after a replica has left the rotation
NOT_INSTALLED = "install HAProxy 2.6 or newer on the controller's machine: apt install haproxy"


@dataclass
class _Proxy:
    process: ProxyProcess
    upstreams: Upstreams
    folder: Path
    log: ProxyLogFile
    slots: dict[int, int] = field(default_factory=dict)  # number of a replica → its slot
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)  # (time, requests since the one before)
    total: int = 0  # requests that HAProxy has counted
    answers: Mapping[str, int] = field(default_factory=dict)  # that it has counted, by the first digit of the status
    #: Those with other settings that still take requests, and those that only answer their last ones.
    replaced: list[ProxyProcess] = field(default_factory=list)
    retired: list[ProxyProcess] = field(default_factory=list)
    num_replaced: int = 0
    left_at: dict[int, float] = field(default_factory=dict)  # number → since when it gets no more requests

    @property
    def problem(self) -> str:
        """Why nothing takes requests; "" if something does."""
        return "" if any(not one.problem for one in self.replaced) else self.process.problem

    @property
    def has_retired(self) -> bool:
        """Whether a proxy that was replaced may still have requests."""
        return bool(self.replaced) or any(one.pid is not None for one in self.retired)

    def serve(self, weights: Mapping[int, int]) -> None:
        """Send requests to exactly these slots."""
        for one in (self.process, *self.replaced):
            one.serve(weights)


class ServiceProxies:
    """`home`: of the daemon. `host`: the address on which endpoints listen."""

    def __init__(self, home: Path, host: str) -> None:
        self._logs = home / "services"
        self._host = host
        self._folder: Path | None = None
        self._why_no_folder = "the daemon is starting"
        self._proxies: dict[int, _Proxy] = {}
        self._problems: dict[int, str] = {}
        self._listeners: dict[int, socket.socket] = {}  # by port; kept while the settings of a proxy change
        self._lock = threading.Lock()
        self._applied = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open_stream: OpenStream | None = None
        self._ends_stream: Callable[[str], bool] = lambda _text: True

    def attach(self, open_stream: OpenStream, ends_stream: Callable[[str], bool]) -> None:
        """How streams to nodes are opened. Before requests are served."""
        self._open_stream, self._ends_stream = open_stream, ends_stream

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop that relays the streams. Before the proxies start."""
        self._loop = loop

    def unsupported(self) -> str | None:
        """Why there can be no proxies here, and what to do; None if there can."""
        return None if find_haproxy() else NOT_INSTALLED

    def find_port(self, used: Collection[int]) -> int:
        """A free port for an endpoint, but none of `used`. Raises RequestRejected."""
        for port in range(FIRST_PORT, LAST_PORT + 1):
            if port not in used:
                with suppress(OSError):
                    listen(self._host, port).close()
                    return port
        fix = "end some services: perdure serve down NAME"
        raise RequestRejected(f"no port from {FIRST_PORT} to {LAST_PORT} is free", fix=fix, status=409)

    def log_path(self, service_id: int) -> Path:
        """The log of a proxy."""
        return self._logs / f"{service_id}.log"

    def pid(self, service_id: int) -> int | None:
        """The process of a proxy, if it runs."""
        proxy = self._proxies.get(service_id)
        return proxy.process.pid if proxy is not None else None

    def start(self) -> None:
        """Remove what an earlier daemon has left running. Raises OSError; may be repeated until it succeeds.

        Until then there are no proxies.
        """
        try:
            self._folder = self._make_folder()
        except OSError as error:
            if self._why_no_folder != str(error):
                log.warning("proxies.not_started", error=str(error))
            self._why_no_folder = str(error)
            raise

    def _make_folder(self) -> Path:
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = self._logs / "sockets"
        _remove_left(record)
        # The path of a unix socket has at most 107 characters, and that of the home may be longer.
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        try:
            _write_record(record, str(folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def stop(self) -> None:
        """End all proxies. Their services go on when the next daemon starts."""
        with self._lock:
            for service_id in list(self._proxies):
                self._remove(service_id)
            for listener in self._listeners.values():
                listener.close()
            self._listeners.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def apply(self, states: Sequence[ProxyState]) -> None:
        """Have exactly these proxies, in these states. Repeating it changes nothing. Raises nothing."""
        with self._lock:
            wanted = {state.settings.service_id: state for state in states}
            for service_id in [one for one in self._proxies if one not in wanted]:
                self._remove(service_id)
            ports = {state.settings.port for state in states}
            for port in [port for port in self._listeners if port not in ports]:
                self._listeners.pop(port).close()
            for state in states:
                try:
                    self._apply(state)
                    self._problems.pop(state.settings.service_id, None)
                except Exception as error:  # noqa: BLE001 - other proxies must not depend on this one
                    self._note_problem(state.settings, f"its proxy cannot be started: {error}")
        with self._applied:
            self._applied.notify_all()

    def wait_open(self, service_id: int) -> None:
        """Wait until the endpoint of a service listens, or cannot."""

        def is_known() -> bool:
            return service_id in self._proxies or service_id in self._problems

        with self._applied:
            self._applied.wait_for(is_known, OPEN_TIMEOUT_S)

    def report(self, service_id: int, now: float) -> ProxyReport:
        """What the proxy of a service reports now."""
        proxy = self._proxies.get(service_id)
        if proxy is None:
            return ProxyReport(problem=self.problem(service_id))
        counts = proxy.process.counts()
        proxy.log.trim()
        totals = {(one.backend, one.server): one for one in counts}
        arrived = sum(one.total for one in counts if one.server == "BACKEND" and one.backend in (BACKEND, HOLD))
        if arrived:
            proxy.arrivals.append((now, arrived - proxy.total if arrived >= proxy.total else arrived))
            proxy.total = arrived
        while proxy.arrivals and proxy.arrivals[0][0] < now - WINDOW_S:
            proxy.arrivals.popleft()
        in_flight = {
            number: totals[BACKEND, server_name(slot)].current + proxy.upstreams.num_were_held(number)
            for number, slot in list(proxy.slots.items())
            if (BACKEND, server_name(slot)) in totals
        }
        self._retire_replaced(proxy)
        if proxy.has_retired:  # they answer requests, and do not say how many
            connections = {number: proxy.upstreams.num_connections(number) for number in in_flight}
            in_flight = {number: max(count, connections[number]) for number, count in in_flight.items()}
        else:
            self._close_idle(proxy, in_flight, now)
        backends = [totals[name, "BACKEND"] for name in (BACKEND, HOLD) if (name, "BACKEND") in totals]
        traffic = Traffic(sum(count for _, count in proxy.arrivals), sum(one.current for one in backends))
        queued = proxy.upstreams.num_held + sum(one.queued for one in backends)
        held_s = proxy.upstreams.held_s()
        held_since = now - held_s if held_s else None
        answers = _new_answers(proxy, totals)
        return ProxyReport(traffic, in_flight, proxy.problem, queued, held_since, answers, proxy.log.read_new())

    def _close_idle(self, proxy: _Proxy, in_flight: Mapping[int, int], now: float) -> None:
        """Have the agents of replicas that got their last request some time ago see that nobody calls any more."""
        leaving = proxy.slots.keys() - {n for n, slot in proxy.slots.items() if slot in proxy.process.serving}
        proxy.left_at = {number: proxy.left_at.get(number, now) for number in leaving}
        for number, since in proxy.left_at.items():
            is_idle = in_flight.get(number) == 0 and now - since >= IDLE_AFTER_S
            if is_idle and self._loop is not None and proxy.upstreams.num_connections(number):
                self._loop.call_soon_threadsafe(proxy.upstreams.close_idle, number)

    def problem(self, service_id: int) -> str:
        """Why the proxy of a service does not run now; "" if it does. From any thread."""
        proxy = self._proxies.get(service_id)
        if proxy is None:
            return self._problems.get(service_id, "its proxy is being started")
        return proxy.problem

    def _apply(self, state: ProxyState) -> None:
        """Raises OSError, TimeoutError."""
        settings = state.settings
        proxy = self._proxies.get(settings.service_id)
        if proxy is None or proxy.process.settings.port != settings.port:
            proxy = self._proxies[settings.service_id] = self._create(settings)
        elif proxy.process.settings != settings and not proxy.process.renew(settings):
            self._replace(proxy, settings)
        slots = _assign(proxy.slots, state.targets, settings.max_targets)
        proxy.slots = {target.number: slot for slot, target in slots.items()}
        serving = {slot: target.weight for slot, target in slots.items() if target.in_rotation}
        # A replica is known before it gets requests, and gets none before it is forgotten. One that only leaves the
        # rotation does so once the others that come are in it: requests would be held meanwhile.
        staying = {slot: weight for slot, weight in proxy.process.serving.items() if slot in slots}
        proxy.serve(staying)
        self._on_loop(proxy.upstreams.apply(slots, state.refusal))
        proxy.serve(serving)

    def _create(self, settings: ProxySettings) -> _Proxy:
        """Raises OSError."""
        program = find_haproxy()
        if program is None:
            raise OSError(NOT_INSTALLED)
        if self._folder is None or self._open_stream is None:
            raise OSError(self._why_no_folder)
        listener = self._listeners.get(settings.port)
        if listener is None:
            listener = self._listeners[settings.port] = listen(self._host, settings.port)
        folder = self._folder / str(settings.service_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        upstreams = Upstreams(settings.name, folder, self._open_stream, self._ends_stream)
        self._on_loop(upstreams.apply({}, ""))
        process = ProxyProcess(program, settings, folder, listener, self.log_path(settings.service_id))
        process.start()
        return _Proxy(process, upstreams, folder, ProxyLogFile(self.log_path(settings.service_id)))

    def _replace(self, proxy: _Proxy, settings: ProxySettings) -> None:
        """Start a HAProxy with other settings. The present one ends when it has answered its requests."""
        old = proxy.process
        listener = self._listeners[settings.port]
        number = proxy.num_replaced = proxy.num_replaced + 1
        program, log_path = find_haproxy() or "haproxy", self.log_path(settings.service_id)
        proxy.process = ProxyProcess(program, settings, proxy.folder, listener, log_path, number=number)
        proxy.process.serve(old.serving)
        proxy.process.start()
        proxy.total, proxy.answers = 0, {}
        proxy.replaced.append(old)

    def _retire_replaced(self, proxy: _Proxy) -> None:
        """Have the proxies that were replaced take no more connections, once the new one does."""
        if proxy.process.problem:
            return
        for one in proxy.replaced:
            one.retire()
        proxy.retired = [one for one in (*proxy.retired, *proxy.replaced) if one.pid is not None]
        proxy.replaced = []

    def _remove(self, service_id: int) -> None:
        proxy = self._proxies.pop(service_id)
        for process in (proxy.process, *proxy.replaced, *proxy.retired):
            process.stop()
        with suppress(OSError, TimeoutError):
            self._on_loop(proxy.upstreams.close())
        shutil.rmtree(proxy.folder, ignore_errors=True)

    def _on_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the event loop. Raises what it raises, TimeoutError, and OSError without a loop."""
        if self._loop is None or self._loop.is_closed() or not self._loop.is_running():
            work.close()
            raise OSError("the daemon is not serving")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LOOP_TIMEOUT_S)

    def _note_problem(self, settings: ProxySettings, problem: str) -> None:
        if self._problems.get(settings.service_id) != problem:
            log.error("proxy.failed", service=settings.name, why=problem)
        self._problems[settings.service_id] = problem


def _new_answers(proxy: _Proxy, totals: Mapping[tuple[str, str], ServerCounts]) -> dict[str, int]:
    """The answers since the last time, by the first digit of the status. A proxy that was started again counts anew."""
    endpoint = totals.get((FRONTEND, "FRONTEND"))
    if endpoint is None:
        return {}
    before, proxy.answers = proxy.answers, endpoint.answers
    is_new = any(endpoint.answers.get(digit, 0) < count for digit, count in before.items())
    known = {} if is_new else before
    return {digit: new for digit, count in endpoint.answers.items() if (new := count - known.get(digit, 0))}


def _assign(known: dict[int, int], targets: Sequence[ProxyTarget], max_targets: int) -> dict[int, ProxyTarget]:
    """Slot → target: a replica keeps its slot. Those beyond the slots get none until others have gone."""
    wanted = {target.number: target for target in targets}
    slots = {slot: wanted[number] for number, slot in known.items() if number in wanted}
    free = (slot for slot in range(max_targets) if slot not in slots)
    for number, target in sorted(wanted.items()):
        if number not in known:
            slot = next(free, None)
            if slot is not None:
                slots[slot] = target
    return slots


def _remove_left(record: Path) -> None:
    """End the proxies of an earlier daemon, and remove its folder, if the record names one: it may be torn."""
    try:
        folder = Path(record.read_text().strip())
    except (OSError, ValueError):
        return
    if not folder.is_absolute() or not folder.name.startswith(FOLDER_PREFIX) or ".." in folder.parts:
        log.warning("proxies.unknown_record", path=str(record))
        return
    _end_left(folder)
    with suppress(OSError):
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def _write_record(path: Path, text: str) -> None:
    """Replace a file, so that after a crash it has either its old or its new content. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _end_left(folder: Path) -> None:
    """Kill the proxies of an earlier daemon, which was killed, by the folder that they were started with."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(f"{folder}/".encode()) and word.endswith(b"/haproxy.cfg") for word in words):
                os.kill(int(process.name), signal.SIGKILL)
