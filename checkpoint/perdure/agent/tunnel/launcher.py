"""A process that becomes the command of a session, and ends with the thread of the agent that started it.

It has one thread, so it may prepare itself between fork and exec, which the agent's threads must not. The job is read
as JSON from a descriptor, since the environment holds secrets and standard input belongs to the user.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

from perdure.agent.workload.runner_process import become_ordinary

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_PR_SET_PDEATHSIG = 1
_COMMAND = (
    "import sys; sys.path.insert(0, sys.argv[1]); from perdure.agent.tunnel.launcher import main; sys.exit(main())"
)


def launch(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    folders: Sequence[str],
    library: Path,
    stdin: Any,
    stdout: Any,
    stderr: Any,
    tty: bool = False,
) -> Popen[bytes]:
    """Start `argv` in the first of `folders` that exists, as the leader of a session. Raises OSError.

    `tty`: standard input is a terminal, which becomes the session's. The process is killed if the calling thread ends.
    """
    job = {"argv": list(argv), "env": dict(env), "folders": list(folders), "tty": tty}
    job_read, job_write = os.pipe()
    try:
        process = Popen(
            [sys.executable or "python3", "-IS", "-c", _COMMAND, str(library), str(job_read)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            pass_fds=(job_read,),
            start_new_session=True,
        )
    except BaseException:
        os.close(job_write)
        raise
    finally:
        os.close(job_read)
    with suppress(BrokenPipeError), open(job_write, "wb") as pipe:
        pipe.write(json.dumps(job).encode())
    return process


def main() -> int:
    """Become the command of the job that can be read from the descriptor in the last argument."""
    with open(int(sys.argv[2]), encoding="utf-8") as pipe:
        job = json.load(pipe)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if job["tty"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    become_ordinary()
    for name in (signal.SIGPIPE, signal.SIGINT):  # Python ignores the one and handles the other
        signal.signal(name, signal.SIG_DFL)
    for folder in job["folders"]:
        with suppress(OSError):
            os.chdir(folder)
            break
    argv = job["argv"]
    try:
        os.execvpe(argv[0], argv, job["env"])  # noqa: S606 - the user's own command
    except FileNotFoundError:
        print(f"perdure: {argv[0]}: command not found", file=sys.stderr, flush=True)
        return NOT_FOUND
    except OSError as error:
        print(f"perdure: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_EXECUTABLE
