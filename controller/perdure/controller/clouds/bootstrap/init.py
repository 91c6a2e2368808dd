"""The first process of a container: runs the boot program (`boot.py`), passes signals on, and collects orphans.

The kernel drops a signal that its first process does not handle, and keeps every process that nobody waits for until
the container ends. Uses only Python 3.9's standard library. The boot program is in the environment variable
PERDURE_BOOT: it holds the attempt's token, which other users of the container could read in an argument. The process
that runs it reads it from a pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_CHILD_SUBREAPER = 36
# An agent that ends this soon has not begun its work; after so many such ends in a row, its container ends, too.
QUICK_END_S, MAX_QUICK_ENDS = 10.0, 3
# Runs the program that it reads from the file descriptor in its last argument.
LOADER = "import sys; exec(open(int(sys.argv.pop()), encoding='utf-8').read())"


class Init:
    """Runs one process of the boot program at a time; signals go to it."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._child = 0
        self._stopped_by = 0  # the first signal

    def run(self) -> int:
        """Run the agent to its end, and again if it was killed, such as for memory: it then reports what happened.

        Returns the container's exit code.
        """
        for number in SIGNALS:
            signal.signal(number, self._pass_on)
        if os.getpid() != 1:  # the pod's containers share their processes: orphans would go to another first process
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        quick_ends = 0
        while True:
            began = time.monotonic()
            code = self._run_once()
            quick_ends = quick_ends + 1 if time.monotonic() - began < QUICK_END_S else 0
            if code == 0 or self._stopped_by or quick_ends >= MAX_QUICK_ENDS:
                return code
            print(f"perdure: the agent ended with {code}: starting it again", flush=True)  # noqa: T201
            time.sleep(1)  # noqa: TID251 - the container has nothing else to do

    def _pass_on(self, number: int, _frame: object) -> None:
        self._stopped_by = self._stopped_by or number
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _run_once(self) -> int:
        """Run the program, and collect all other children meanwhile. Signals wait until its process is known.

        After a signal, such as one between two runs, nothing is started any more.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the handler of each earlier signal has run on return
        if self._stopped_by:
            return 128 + self._stopped_by
        reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.set_inheritable(reader, True)
            os.execv(sys.executable, [sys.executable, "-c", LOADER, "agent", str(reader)])  # noqa: S606
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(reader)
        with contextlib.suppress(BrokenPipeError), open(writer, "w", encoding="utf-8") as file:
            file.write(self._boot)
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == self._child:
                self._child = 0
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


if __name__ == "__main__":
    sys.exit(Init(os.environ.pop("PERDURE_BOOT")).run())
