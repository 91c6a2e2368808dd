"""The runner, a process of its own beside the agent: runs one script, stores its output, waits for it, and stops it.

`stage` is the agent's handle of it. The runner stops the script's processes with SIGTERM, in the order that
`stop_order` gives, then with SIGKILL. It has its own session.

The agent may be killed and started again: the script does not notice and loses no output, because its pipe ends here.
The runner is a child subreaper: the script's background processes (`&`, nohup, setsid) become its children, so no child
left means that nothing of the script is left.

Files in its folder: `lock` (held while it lives), `runner.json` (its pid), `begun` (the login files have been sourced),
`stop.json` (the agent's request to stop), `result.json` (how the script ended). The job is read as JSON from stdin,
since the environment holds secrets.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
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

from perdure.agent import clock
from perdure.agent.state_file import read_json, reserve_disk_space, write_json
from perdure.agent.workload import stop_order
from perdure.agent.workload.tools.login import LOGIN, LOGIN_WITHOUT_FILES, SH

PR_SET_CHILD_SUBREAPER = 36
F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 18
READS_PER_STEP = 16
IDLE_POLL_S, STOPPING_POLL_S = 0.25, 0.02
LEFTOVER_GRACE_S = 2.0
# How long a reader such as `tee` may go on after the program that saved has ended: a busy machine schedules it late.
OUTPUT_DRAIN_S = 1.0
ALREADY_RUNNING = 75
UMASK = 0o022
# More than a program that closes every possible descriptor can bear.
MAX_OPEN_FILES = 1 << 20


def main() -> int:
    """Run the job on stdin: {"script", "cwd", "log", "directory", "env", "allow_background", "enter", "shell"}."""
    try:
        job = json.load(sys.stdin)
    except ValueError:
        return 1  # the agent died while writing; the next one sends the job again
    directory = Path(job["directory"])
    lock = take_lock(directory)
    if lock is None:
        return ALREADY_RUNNING
    if not (directory / "result.json").exists():
        Runner(job, directory).run()
    return 0


def take_lock(directory: Path) -> int | None:
    """The lock's descriptor; None when another runner lives. A lock ends with its holder, unlike a pid in a file."""
    descriptor = os.open(str(directory / "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError:
        os.close(descriptor)
        return None


class Runner:
    """Runs one script. `allow_background`: its background processes may outlive it, until the agent stops them."""

    def __init__(self, job: dict[str, Any], directory: Path) -> None:
        self._job = job
        self._enter: list[str] = job.get("enter") or []  # the beginning of a command that runs in the container
        self._shell: str = job.get("shell") or shutil.which("bash") or "bash"
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
        self._alive_at_stop: frozenset[tuple[int, int]] | None = None
        self._signalled: frozenset[tuple[int, int]] = frozenset()
        self._saving_until = 0.0
        self._bytes_lost = 0

    def run(self) -> None:
        """Run until no process of the script is left."""
        write_json(self._directory / "runner.json", {"pid": os.getpid()})
        reserve_disk_space(self._directory / "result.json")
        _become_subreaper()
        self._read_stop()
        if self._was_stopped:
            self._write_result(None)
            return
        self._start(with_rc=True)
        while self._reap():
            self._signal_processes()
            self._wait_for_events()
            self._read_stop()
            self._copy_output()
        self._copy_output()
        self._write_result(self._exit_code)
        while not self._is_result_written:
            time.sleep(IDLE_POLL_S)  # the disk is full, and an exit code must not be lost
            self._write_result(self._exit_code)

    def _start(self, *, with_rc: bool) -> None:
        begun, cwd = shlex.quote(str(self._directory / "begun")), shlex.quote(self._job["cwd"])
        login = "" if self._shell == SH else LOGIN if with_rc else LOGIN_WITHOUT_FILES
        launcher = f'{login}: >{begun}; cd {cwd} && . "$0"'
        try:
            self._script = subprocess.Popen(
                [*self._enter, self._shell, "-c", launcher, self._job["script"]],
                stdin=subprocess.DEVNULL,
                stdout=self._pipe_end,
                stderr=self._pipe_end,
                cwd="/",
                env=self._job["env"],
                start_new_session=True,
                preexec_fn=become_ordinary,  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            self._append_to_log(f"perdure: bash cannot be started on this node: {error}\n".encode())
            self._ended, self._exit_code = True, 127

    def _reap(self) -> bool:
        """Collect ended children; False when none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._script is not None and pid == self._script.pid:
                self._on_script_exit(_exit_code(status))
                if not self._ended:
                    return True  # the script was started again

    def _on_script_exit(self, exit_code: int) -> None:
        self._script, script = None, self._script
        assert script is not None
        script.returncode = exit_code  # we waited for it, not Popen
        if not (self._directory / "begun").exists() and not self._was_stopped and not self._ended:
            self._append_to_log(b"perdure: ~/.bashrc ended the shell; going on without it\n")
            (self._directory / "begun").touch()
            self._start(with_rc=False)
            return
        self._ended, self._exit_code = True, exit_code
        self._copy_output()
        if self._job["allow_background"]:
            self._write_result(exit_code)
        elif self._kill_at is None:
            self._kill_at = clock.now() + LEFTOVER_GRACE_S

    def _write_result(self, exit_code: int | None) -> None:
        if self._is_result_written:
            return
        result = {"exit_code": exit_code, "stopped": self._was_stopped, "at": time.time()}
        result["bytes_lost"] = self._bytes_lost
        with suppress(OSError):
            write_json(self._directory / "result.json", result)
            self._is_result_written = True

    def _read_stop(self) -> None:
        """Read the agent's request to stop. A later request may have another time."""
        request = read_json(self._directory / "stop.json")
        if request is not None:
            self._kill_at = float(request["kill_at"])
            self._was_stopped = self._was_stopped or not self._ended

    def _signal_processes(self) -> None:
        """One round of a stop: SIGTERM to the processes that are due, SIGKILL to all once the time is over."""
        if self._kill_at is None:
            return
        root, now = os.getpid(), clock.now()
        tree = stop_order.descendants(root)
        if now >= self._kill_at:
            for pid in tree:
                _kill(pid, signal.SIGKILL)
            return
        if self._alive_at_stop is None:
            self._alive_at_stop = frozenset(process.key for process in tree.values())
        if stop_order.is_saving(tree, root):
            self._saving_until = now + OUTPUT_DRAIN_S
        saving = now < self._saving_until
        for process in stop_order.to_signal(
            tree, root, alive_at_stop=self._alive_at_stop, signalled=self._signalled, saving=saving
        ):
            _kill(process.pid, signal.SIGTERM)
            self._signalled |= {process.key}

    def _wait_for_events(self) -> None:
        """Wait for output, a signal (a child's end, a request to stop), or the next round."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        poll.poll(1000 * (IDLE_POLL_S if self._kill_at is None else STOPPING_POLL_S))
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def _copy_output(self) -> None:
        """Copy a bounded amount, so that a flood of output does not delay the handling of signals."""
        for _ in range(READS_PER_STEP):
            try:
                data = os.read(self._pipe, READ_BYTES)
            except BlockingIOError:
                return
            self._append_to_log(data)

    def _append_to_log(self, data: bytes) -> None:
        """Append to the log. A full disk loses output, never the workload; the log says how much was lost."""
        if self._bytes_lost:
            note = f"\nperdure: {self._bytes_lost} bytes of output were lost: the node's disk was full\n".encode()
            if _append(self._log, note):
                self._bytes_lost += len(data)
                return
            self._bytes_lost = 0
        self._bytes_lost = _append(self._log, data)


def _append(descriptor: int, data: bytes) -> int:
    """Write `data` as far as the disk has space; returns the number of bytes that were not written."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        pass
    return len(left)


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def become_ordinary() -> None:
    """Undo what is special to the agent, and raise limits: the defaults of services are too low for data loaders."""
    os.umask(UMASK)
    raise_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    for kind in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_STACK, resource.RLIMIT_NPROC):
        raise_limit(kind, resource.RLIM_INFINITY)
    with suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < 0:  # out of memory, the workload ends before its agent
            file.write("0")


def raise_limit(kind: int, wanted: int) -> None:
    """Raise a soft limit to `wanted`, or to the hard limit if that is lower and this user cannot raise it."""
    soft, hard = resource.getrlimit(kind)
    if _is_at_least(soft, wanted):
        return
    for limits in ((wanted, hard if _is_at_least(hard, wanted) else wanted), (hard, hard)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, limits)
            return


def _is_at_least(limit: int, wanted: int) -> bool:
    return limit == resource.RLIM_INFINITY or (wanted != resource.RLIM_INFINITY and limit >= wanted)


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _wake_on_signals() -> int:
    """A pipe that becomes readable at every signal.

    Signals get a handler instead of SIG_IGN, so that the script starts with every signal's default action.
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
