"""The process that runs one script, waits for it, and keeps its output. Its own session, apart from the agent.

The agent may be killed and started again: the script neither notices nor loses a byte, because its pipe ends here. The
runner is a child subreaper: whatever the script leaves in the background (`&`, nohup, setsid) comes back to it, and no
child left means that nothing of the script is left.

In its folder: `lock` (held while it lives), `runner.json` (its pid), `begun` (~/.bashrc is through), `stop.json` (the
agent's wish), `result.json` (how it ended). The job comes as JSON on stdin, since the environment holds secrets.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.agent import clock, processes
from perdure.agent.state import keep_room, read_json, write_json

PR_SET_CHILD_SUBREAPER = 36
F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
READS_PER_STEP = 16
IDLE_S, ENDING_S = 0.25, 0.02
LEFTOVER_GRACE_S = 2.0
# How long what reads from a program that saved has for its last lines: on a busy machine its turn comes late.
LAST_LINES_S = 1.0
ALREADY_RUNNING = 75

# ~/.bashrc may do anything: print, fail, change options and folders, and even end the shell (then it is tried without).
_SOURCE_RC = "if [ -f ~/.bashrc ]; then source ~/.bashrc >/dev/null 2>&1 </dev/null || true; fi; set +eu +o pipefail; "


def main() -> int:
    """Run the job on stdin: {"script", "cwd", "log", "directory", "env", "lingers"}."""
    try:
        job = json.load(sys.stdin)
    except ValueError:
        return 1  # the agent died while it was telling; the next one tells it again
    directory = Path(job["directory"])
    lock = take_lock(directory)
    if lock is None:
        return ALREADY_RUNNING
    if not (directory / "result.json").exists():
        Runner(job, directory).run()
    return 0


def take_lock(directory: Path) -> int | None:
    """The lock's descriptor, or None when another runner lives. A lock ends with its holder, unlike a pid in a file."""
    descriptor = os.open(str(directory / "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError:
        os.close(descriptor)
        return None


class Runner:
    """One script's life. `lingers`: what it leaves in the background may live on (until told to stop)."""

    def __init__(self, job: dict[str, Any], directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pipe, self._pipe_end = os.pipe()
        os.set_blocking(self._pipe, False)
        with suppress(OSError):  # a smaller pipe only means more reads
            fcntl.fcntl(self._pipe, F_SETPIPE_SZ, PIPE_BYTES)
        self._wake = _wake_on_signals()
        self._script: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._ended = False
        self._is_result_written = False
        self._was_stopped = False
        self._kill_at: float | None = None
        self._at_first: frozenset[tuple[int, int]] | None = None
        self._told: frozenset[tuple[int, int]] = frozenset()
        self._saving_until = 0.0
        self._bytes_lost = 0

    def run(self) -> None:
        """Until no process of the script is left."""
        write_json(self._directory / "runner.json", {"pid": os.getpid()})
        keep_room(self._directory / "result.json")
        _become_subreaper()
        self._read_stop()
        if self._was_stopped:
            self._finish(None)
            return
        self._start(with_rc=True)
        while self._reap():
            self._end_some()
            self._await_something()
            self._read_stop()
            self._copy_output()
        self._copy_output()
        self._finish(self._exit_code)
        while not self._is_result_written:
            time.sleep(IDLE_S)  # for room on the disk: an exit code must not be lost
            self._finish(self._exit_code)

    def _start(self, *, with_rc: bool) -> None:
        script, begun = self._job["script"], shlex.quote(str(self._directory / "begun"))
        launcher = (_SOURCE_RC if with_rc else "") + f': >{begun}; cd {shlex.quote(self._job["cwd"])} && source "$0"'
        try:
            self._script = subprocess.Popen(
                [shutil.which("bash") or "bash", "-c", launcher, script],
                stdin=subprocess.DEVNULL,
                stdout=self._pipe_end,
                stderr=self._pipe_end,
                cwd="/",
                env=self._job["env"],
                start_new_session=True,
            )
        except OSError as error:
            self._write(f"perdure: bash can not be started on this node: {error}\n".encode())
            self._ended, self._exit_code = True, 127

    def _reap(self) -> bool:
        """Take in the dead; False when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._script is not None and pid == self._script.pid:
                self._script_ended(_exit_code(status))
                if not self._ended:
                    return True  # it was started again

    def _script_ended(self, exit_code: int) -> None:
        self._script, script = None, self._script
        assert script is not None
        script.returncode = exit_code  # we waited for it, not Popen
        if not (self._directory / "begun").exists() and not self._was_stopped and not self._ended:
            self._write(b"perdure: ~/.bashrc ended the shell; going on without it\n")
            (self._directory / "begun").touch()
            self._start(with_rc=False)
            return
        self._ended, self._exit_code = True, exit_code
        self._copy_output()
        if self._job["lingers"]:
            self._finish(exit_code)
        elif self._kill_at is None:
            self._kill_at = clock.now() + LEFTOVER_GRACE_S

    def _finish(self, exit_code: int | None) -> None:
        if self._is_result_written:
            return
        result = {"exit_code": exit_code, "stopped": self._was_stopped, "at": time.time()}
        result["bytes_lost"] = self._bytes_lost
        with suppress(OSError):
            write_json(self._directory / "result.json", result)
            self._is_result_written = True

    def _read_stop(self) -> None:
        """The agent's wish to end this, which may come with another time again."""
        wish = read_json(self._directory / "stop.json")
        if wish is not None:
            self._kill_at = float(wish["kill_at"])
            self._was_stopped = self._was_stopped or not self._ended

    def _end_some(self) -> None:
        """One round of an end: SIGTERM to those whose turn it is; SIGKILL to all once the time is over."""
        if self._kill_at is None:
            return
        root, now = os.getpid(), clock.now()
        tree = processes.descendants(root)
        if now >= self._kill_at:
            for pid in tree:
                _kill(pid, signal.SIGKILL)
            return
        if self._at_first is None:
            self._at_first = frozenset(process.key for process in tree.values())
        if processes.is_saving(tree, root):
            self._saving_until = now + LAST_LINES_S
        saving = now < self._saving_until
        for process in processes.to_tell(tree, root, at_first=self._at_first, told=self._told, saving=saving):
            _kill(process.pid, signal.SIGTERM)
            self._told |= {process.key}

    def _await_something(self) -> None:
        """Until there is output, a signal (a child's end, the agent's wish), or the next round is due."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        poll.poll(1000 * (IDLE_S if self._kill_at is None else ENDING_S))
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def _copy_output(self) -> None:
        """Bounded, so that a flood of output does not keep the children's deaths and the agent's wishes waiting."""
        for _ in range(READS_PER_STEP):
            try:
                data = os.read(self._pipe, READ_BYTES)
            except BlockingIOError:
                return
            self._write(data)

    def _write(self, data: bytes) -> None:
        """Append to the log. A full disk costs output, never the workload: how much is said once there is room."""
        if self._bytes_lost:
            note = f"\nperdure: {self._bytes_lost} bytes of output were lost: the node's disk was full\n".encode()
            if _append(self._log, note):
                self._bytes_lost += len(data)
                return
            self._bytes_lost = 0
        self._bytes_lost = _append(self._log, data)


def _append(descriptor: int, data: bytes) -> int:
    """Write all of it if the disk takes it; how many bytes it did not take."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        pass
    return len(left)


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _wake_on_signals() -> int:
    """A pipe that becomes readable at signals.

    A handler for each, and not SIG_IGN, so that the script starts with the default of every signal, whatever the agent
    was started under.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    return read_end


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
