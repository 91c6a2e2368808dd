"""The host process of one instance, like a hypervisor for a virtual machine.

`python -m perdure.controller.clouds.local.host.hypervisor DIRECTORY LOCK_FD READY_FD` detaches itself from its parent,
holds the instance's lock for its lifetime, starts the machine, serves its metadata, executes commands and writes the
tombstone. It writes "ok" to READY_FD when the machine runs, or the error if it does not. The machine ends with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.machine import init, process_tree, syscalls
from perdure.controller.clouds.local.machine.metadata import HttpConnection, Metadata

COMMAND_POLL_S = 5.0  # in case a wake-up is lost
MAX_AGENT_LOG = 1024 * 1024


class Host:
    """Runs in the instance's directory. The launcher reads from `ready_fd`."""

    def __init__(self, ready_fd: int) -> None:
        self._ready_fd = ready_fd
        self._spec = layout.read_json(layout.SPEC) or {}
        self._state = layout.read_json(layout.STATE) or {}
        self._kind: str = self._spec["isolation"]
        self._instance: dict[str, Any] = self._state["instance"]
        self._metadata = Metadata(self._spec["metadata"])
        self._events = selectors.DefaultSelector()
        self._pid = 0
        self._deadline = math.inf  # when the machine is preempted
        self._preemption: dict[str, float] | None = self._spec.get("preemption")  # scheduled, and not yet announced
        self._reason: str | None = None
        self._keeps_disk: bool = self._instance.get("keeps_disk", False)

    def start(self) -> None:
        """Start the machine and notify the launcher. Raises OSError or MachineStartError; then nothing runs."""
        if self._kind == process_tree.PROCESSES:
            syscalls.adopt_orphans()
        wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.remove(layout.WAKE_SOCKET)
        wake.bind(layout.WAKE_SOCKET)
        listener = socket.create_server((self._instance["ip"], 0), backlog=64)
        listener.setblocking(False)
        self._events.register(wake, selectors.EVENT_READ, self._drain_wakes)
        self._events.register(listener, selectors.EVENT_READ, self._accept)
        if self._spec.get("has_spawner"):
            from perdure.controller.clouds.local.host import spawner  # other hosts start faster without this import

            spawner.start_spawner()
        endpoint = f"http://{self._instance['ip']}:{listener.getsockname()[1]}"
        self._start_machine(endpoint)
        self._events.register(os.pidfd_open(self._pid), selectors.EVENT_READ, self._machine_ended)
        born = {"pid": self._pid, "pid_started": layout.start_time(self._pid), "launched_at": now()}
        self._record(layout.RUNNING, **born, metadata=endpoint, isolation=self._kind, ended_at=None, reason=None)
        with contextlib.suppress(BrokenPipeError):  # the launcher died: the machine continues
            os.write(self._ready_fd, b"ok")
        os.close(self._ready_fd)

    def serve(self) -> None:
        """Run until the machine has ended and its tombstone is written."""
        while self._reason is None:
            self._process_commands()
            if self._reason is None:
                self._wait()
        self._write_tombstone()

    def _start_machine(self, endpoint: str) -> None:
        output = self._open_agent_log()
        command, env, home = self._spec["command"], self._spec["env"], self._spec["node_home"]
        env["PERDURE_METADATA_ENDPOINT"] = endpoint
        disk = os.path.abspath(layout.MACHINE)
        for folder in (disk, *self._spec["folders"]):
            os.makedirs(folder, 0o700, exist_ok=True)  # a machine that was halted has them
        self._pid = process_tree.start(
            self._kind, self._spec["plan"], disk, output, lambda: init.supervise(command, env, home)
        )
        os.close(output)

    def _wait(self) -> None:
        next_at = min(self._deadline, self._notice_at())
        timeout_s = max(0.0, min(COMMAND_POLL_S, next_at - now()))
        for key, _ in self._events.select(timeout_s):
            key.data(key.fileobj)

    def _notice_at(self) -> float:
        """When the scheduled preemption is announced; infinity if there is none."""
        return self._preemption["at"] - self._preemption["notice_s"] if self._preemption else math.inf

    def _process_commands(self) -> None:
        """Execute commands, and the preemptions that are due."""
        os.utime(layout.LOCK)
        if layout.read_json(os.path.join(layout.COMMANDS, layout.TERMINATE)) is not None:
            self._end(layout.TERMINATED)
        elif layout.read_json(os.path.join(layout.COMMANDS, layout.STOP)) is not None:
            self._end(layout.STOPPED)
        elif command := layout.read_command(".", layout.INTERRUPT):
            self._interrupt(command["notice_s"])
        elif self._preemption and self._notice_at() <= now():
            left_s = self._preemption["at"] - now()
            self._interrupt(max(0.0, left_s) if self._preemption["notice_s"] else None)
            self._preemption = None
        if self._deadline <= now():
            self._end(layout.PREEMPTED)

    def _interrupt(self, notice_s: float | None) -> None:
        at = now()
        if notice_s is None:
            self._deadline = at
            return
        # Metadata contains whole seconds: round the deadline up, so that the notice is not shorter than requested.
        self._deadline = min(self._deadline, float(math.ceil(at + notice_s)))
        self._metadata.mark_for_interruption(at=at, deadline=self._deadline)
        self._record(layout.RUNNING, deadline=self._deadline)

    def _end(self, reason: str) -> None:
        self._reason = reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _machine_ended(self, _pidfd: object) -> None:
        status = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        clean = status is not None and status.si_code == os.CLD_EXITED and status.si_status == 0
        self._reason = self._reason or (layout.STOPPED if clean else layout.CRASHED)

    def _write_tombstone(self) -> None:
        """Wait until no process of the machine is left, write the tombstone, and remove all but a disk that is kept."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        if self._kind == process_tree.PROCESSES:
            init.kill_descendants()
        if self._keeps_disk and self._reason in (layout.STOPPED, layout.CRASHED):
            self._record(layout.HALTED, reason=self._reason, ended_at=now())
            layout.remove_all_but_disk(".")
            return
        self._record(layout.ENDED, reason=self._reason, ended_at=now())
        layout.remove_all_but_tombstone(".")

    def _record(self, state: str, **more: object) -> None:
        self._state.update(state=state, **more)
        layout.write_json(layout.STATE, self._state)

    # ---- output of the machine, and requests of its clients ----

    def _open_agent_log(self) -> int:
        """A descriptor whose input is appended to the agent's log. A log that is too long loses its beginning."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        log = os.open(layout.AGENT_LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

        def append(_reader: object) -> None:
            if not (text := os.read(reader, 65536)):
                self._events.unregister(reader)
                return
            if (size := os.fstat(log).st_size) + len(text) > MAX_AGENT_LOG:
                end = os.pread(log, MAX_AGENT_LOG // 2, size - MAX_AGENT_LOG // 2)
                os.ftruncate(log, 0)
                os.write(log, end)
            os.write(log, text)

        self._events.register(reader, selectors.EVENT_READ, append)
        return writer

    @staticmethod
    def _drain_wakes(wake: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            while wake.recv(1):
                pass

    def _accept(self, listener: Any) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            http = HttpConnection(self._metadata)
            self._events.register(connection, selectors.EVENT_READ, lambda client: self._serve_client(client, http))

    def _serve_client(self, client: Any, http: HttpConnection) -> None:
        try:
            received = client.recv(65536)
            if received and (responses := http.feed(received, time.monotonic())):
                client.sendall(responses)
        except OSError:  # the client is gone, or does not read its responses
            received = b""
        if not received or http.is_closed:
            self._events.unregister(client)
            client.close()


def now() -> float:
    """Epoch seconds by the real clock: the host plays hardware, whose times are compared with other real clocks."""
    return time.time()  # noqa: TID251


def main() -> None:
    directory, lock, ready_fd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if os.fork():
        os._exit(0)  # the host does not depend on the launcher
    os.setsid()
    os.chdir(directory)
    for fd in (lock, ready_fd):
        os.set_inheritable(fd, False)
    host = Host(ready_fd)
    try:
        host.start()
    except (process_tree.MachineStartError, OSError) as failed:
        with contextlib.suppress(BrokenPipeError):
            os.write(ready_fd, str(failed).encode())
        sys.exit(1)
    host.serve()


if __name__ == "__main__":
    main()
