"""A user at a terminal: types the commands of a document, and answers what they ask."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from support.helpers.timing import scaled, wait_until

LIMIT_S = 60.0
QUESTION = "[Y/n]: "


@dataclass
class Terminal:
    """One running command. `screen`: all that it has written."""

    command: str
    process: subprocess.Popen[bytes]
    master: int
    screen: str = ""
    answered: int = 0
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def wait_for(self, text: str) -> None:
        """Wait until it has written `text`."""
        ended = self.process.poll
        wait_until(lambda: text in self.screen or ended() is not None, f"{text!r} from {self.command!r}", LIMIT_S)
        assert text in self.screen, f"{self.command} ended with {ended()}:\n{self.screen}"

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end; returns the exit code."""
        try:
            code = self.process.wait(scaled(limit_s))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} does not end:\n{self.screen}") from None
        self.reader.join()
        return code

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                return
            self.screen += data.decode(errors="replace").replace("\r\n", "\n")
            if self.screen.count(QUESTION) > self.answered:
                self.answered += 1
                self.press("y\n")


@dataclass(frozen=True)
class User:
    """Somebody with a home folder, a project folder and a shell."""

    project: Path
    environ: Mapping[str, str]

    @contextlib.contextmanager
    def at(self, command: str) -> Iterator[Terminal]:
        """The command while it runs; it is killed in the end."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self.project,
            env=dict(self.environ),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C is a signal
        )
        os.close(slave)
        terminal = Terminal(command, process, master)
        try:
            yield terminal
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            os.close(master)

    def types(self, command: str, exit_code: int = 0, *, limit_s: float = LIMIT_S) -> str:
        """Run the command to its end; returns what it wrote."""
        with self.at(command) as terminal:
            code = terminal.end(limit_s)
            assert code == exit_code, f"{command} ended with {code}:\n{terminal.screen}"
            return terminal.screen
