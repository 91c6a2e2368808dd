"""The process behind one instance: what a hypervisor is to a virtual machine.

`python -m perdure.controller.clouds.local.host DIRECTORY LOCK_FD ANSWER_FD` detaches itself from whoever started it,
keeps the instance's lock for its life, starts the machine, serves its metadata, obeys orders, and writes down how it
ended. It answers "ok" on ANSWER_FD when the machine runs, or says there why it does not. The machine dies with it.
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

from perdure.controller.clouds.local import init, layout, machine, syscalls
from perdure.controller.clouds.local.metadata import Conversation, Metadata

LOOK_AT_ORDERS_S = 5.0  # in case a poke is lost
MAX_AGENT_LOG = 1024 * 1024


class Host:
    """Runs in the instance's directory. `answer` is the descriptor that the launcher listens to."""

    def __init__(self, answer: int) -> None:
        self._answer = answer
        self._spec = layout.read_json(layout.SPEC) or {}
        self._state = layout.read_json(layout.STATE) or {}
        self._kind: str = self._spec["isolation"]
        self._instance: dict[str, Any] = self._state["instance"]
        self._metadata = Metadata(self._spec["metadata"])
        self._events = selectors.DefaultSelector()
        self._pid = 0
        self._deadline = math.inf  # when the machine is taken
        self._fate: dict[str, float] | None = self._spec.get("fate")  # known to nobody before its time
        self._reason: str | None = None

    def start(self) -> None:
        """Start the machine and tell the launcher. Raises OSError or `machine.MachineFailed`; then nothing runs."""
        if self._kind == machine.PROCESSES:
            syscalls.adopt_orphans()
        poke = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.remove(layout.POKE)
        poke.bind(layout.POKE)
        listener = socket.create_server((self._instance["ip"], 0), backlog=64)
        listener.setblocking(False)
        self._events.register(poke, selectors.EVENT_READ, self._drain_pokes)
        self._events.register(listener, selectors.EVENT_READ, self._accept)
        if self._spec.get("starts_others"):
            from perdure.controller.clouds.local import starting  # no other machine's host waits for what it loads

            starting.begin()
        endpoint = f"http://{self._instance['ip']}:{listener.getsockname()[1]}"
        self._start_machine(endpoint)
        self._events.register(os.pidfd_open(self._pid), selectors.EVENT_READ, self._machine_ended)
        born = {"pid": self._pid, "pid_started": layout.start_time(self._pid), "launched_at": now()}
        self._record(layout.RUNNING, **born, metadata=endpoint, isolation=self._kind)
        with contextlib.suppress(BrokenPipeError):  # the launcher died: the machine lives on
            os.write(self._answer, b"ok")
        os.close(self._answer)

    def serve(self) -> None:
        """From then on until the tombstone."""
        while self._reason is None:
            self._obey()
            if self._reason is None:
                self._wait()
        self._bury()

    def _start_machine(self, endpoint: str) -> None:
        output = self._open_agent_log()
        command, env, home = self._spec["command"], self._spec["env"], self._spec["node_home"]
        env["PERDURE_METADATA_ENDPOINT"] = endpoint
        disk = os.path.abspath(layout.MACHINE)
        os.mkdir(disk, 0o700)
        for folder in self._spec["folders"]:
            os.mkdir(folder, 0o700)
        self._pid = machine.start(
            self._kind, self._spec["plan"], disk, output, lambda: init.supervise(command, env, home)
        )
        os.close(output)

    def _wait(self) -> None:
        next_at = min(self._deadline, self._fate["taken_at"] - self._fate["notice_s"] if self._fate else math.inf)
        timeout_s = max(0.0, min(LOOK_AT_ORDERS_S, next_at - now()))
        for key, _ in self._events.select(timeout_s):
            key.data(key.fileobj)

    def _obey(self) -> None:
        """Look at the orders, and at the clock."""
        os.utime(layout.LOCK)
        if layout.read_json(os.path.join(layout.ORDERS, layout.TERMINATE)) is not None:
            self._end(layout.TERMINATED)
        elif order := layout.take_order(".", layout.INTERRUPT):
            self._interrupt(order)
        elif self._fate and self._fate["taken_at"] - self._fate["notice_s"] <= now():
            left_s = self._fate["taken_at"] - now()
            self._interrupt({"notice_s": max(0.0, left_s) if self._fate["notice_s"] else None})
            self._fate = None
        if self._deadline <= now():
            self._end(layout.PREEMPTED)

    def _interrupt(self, order: dict[str, Any]) -> None:
        at = now()
        if order["notice_s"] is None:
            self._deadline = at
            return
        # Metadata tells whole seconds: the deadline is one, and the notice not shorter than asked for.
        self._deadline = min(self._deadline, float(math.ceil(at + order["notice_s"])))
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

    def _bury(self) -> None:
        """Wait until no process of the machine is left, write the tombstone, remove the rest."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        if self._kind == machine.PROCESSES:
            init.kill_descendants()
        self._record(layout.ENDED, reason=self._reason, ended_at=now())
        layout.remove_all_but_tombstone(".")

    def _record(self, state: str, **more: object) -> None:
        self._state.update(state=state, **more)
        layout.write_json(layout.STATE, self._state)

    # ---- what the machine and its clients say ----

    def _open_agent_log(self) -> int:
        """A descriptor to write to; what comes is kept in the agent's log, of which the end is kept."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        log = os.open(layout.AGENT_LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

        def keep(_reader: object) -> None:
            if not (text := os.read(reader, 65536)):
                self._events.unregister(reader)
                return
            if (size := os.fstat(log).st_size) + len(text) > MAX_AGENT_LOG:
                end = os.pread(log, MAX_AGENT_LOG // 2, size - MAX_AGENT_LOG // 2)
                os.ftruncate(log, 0)
                os.write(log, end)
            os.write(log, text)

        self._events.register(reader, selectors.EVENT_READ, keep)
        return writer

    @staticmethod
    def _drain_pokes(poke: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            while poke.recv(1):
                pass

    def _accept(self, listener: Any) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            talk = Conversation(self._metadata)
            self._events.register(connection, selectors.EVENT_READ, lambda client: self._converse(client, talk))

    def _converse(self, client: Any, talk: Conversation) -> None:
        try:
            received = client.recv(65536)
            if received and (answers := talk.feed(received, time.monotonic())):
                client.sendall(answers)
        except OSError:  # gone, or it does not read what it asked for
            received = b""
        if not received or talk.is_over:
            self._events.unregister(client)
            client.close()


def now() -> float:
    """Epoch seconds. The host stands for hardware: what it tells is read on other clocks, so it reads the real one."""
    return time.time()  # noqa: TID251


def main() -> None:
    directory, lock, answer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if os.fork():
        os._exit(0)  # the launcher need not live to bury this one
    os.setsid()
    os.chdir(directory)
    for fd in (lock, answer):
        os.set_inheritable(fd, False)
    host = Host(answer)
    try:
        host.start()
    except (machine.MachineFailed, OSError) as failed:
        with contextlib.suppress(BrokenPipeError):
            os.write(answer, str(failed).encode())
        sys.exit(1)
    host.serve()


if __name__ == "__main__":
    main()
