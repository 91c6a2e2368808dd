"""Which processes of a script get SIGTERM, and in which order, from the process tree in /proc.

Only chooses: `runner_process.Runner._signal_processes` sends the signals.

A graceful end must not cost the checkpoint that it is meant to save. Three habits of training jobs decide the order:

- `python train.py | tee log`: if `tee` died at once, the next `print` of train.py would fail on a broken pipe.
- Data loaders: a worker that dies raises an error in the training loop, before the loop can save.
- `bash script`: the shell must not run the next line when the program that saved has ended.

So shells that wait for a child, and programs that catch SIGTERM, get it at once. Processes that would simply die get it
when no program is left that may be saving. A program below another program is left to its parent, as under any init; if
the parent dies first, the child is chosen here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ksh93", "mksh", "ash", "busybox", "fish"})
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


@dataclass(frozen=True)
class Process:
    """A living process. Its pid and start time together are unique."""

    pid: int
    parent: int
    started: int  # clock ticks since boot
    is_shell: bool = False
    catches: bool = False  # SIGTERM has a handler, or is blocked to be waited for

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.started)


def descendants(root: int) -> dict[int, Process]:
    """Every living process below `root`, by pid, without zombies."""
    parents = {pid: seen for pid in _pids() if (seen := _read_stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in parents.items():
        children.setdefault(parent, []).append(pid)
    tree: dict[int, Process] = {}
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        todo += children.get(pid, ())
        parent, started = parents[pid]
        tree[pid] = Process(pid, parent, started, is_shell=_is_shell(pid), catches=_catches_sigterm(pid))
    return tree


def find_by_variable(name: str, value: str) -> list[int]:
    """The processes started with `name=value` in their environment, as far as this user may read it."""
    entry = f"{name}={value}".encode()
    return [pid for pid in _pids() if entry in (_read(f"/proc/{pid}/environ") or b"").split(b"\0")]


def kill(pid: int) -> None:
    """SIGKILL, unless the process is gone or belongs to another user."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def is_saving(tree: Mapping[int, Process], root: int) -> bool:
    """Whether a program may still be saving: one that catches SIGTERM and is not a shell that waits for others.

    A program that is exiting has no handlers any more; its last output may still be on its way through a `tee`.
    """
    parent_pids = {process.parent for process in tree.values()}
    return any(p.catches and not (p.is_shell and p.pid in parent_pids) for p in _unsupervised(tree, root))


def to_signal(
    tree: Mapping[int, Process],
    root: int,
    *,
    alive_at_stop: frozenset[tuple[int, int]],
    signalled: frozenset[tuple[int, int]],
    saving: bool,
) -> list[Process]:
    """The processes that must get SIGTERM now.

    `alive_at_stop`: the keys of the processes that lived when the stop was requested. `signalled`: the keys of those
    that already got SIGTERM. What a shell starts later is the work of its trap and is left alone until it is an orphan
    (a child of `root`). `saving`: processes that would simply die are still needed.
    """
    parent_pids = {process.parent for process in tree.values()}
    waiting = [
        p for p in _unsupervised(tree, root) if p.key not in signalled and (p.key in alive_at_stop or p.parent == root)
    ]
    at_once = [p for p in waiting if p.catches or (p.is_shell and p.pid in parent_pids)]
    return at_once if saving else waiting


def _unsupervised(tree: Mapping[int, Process], root: int) -> Iterator[Process]:
    """Processes that no program supervises: children of `root`, and of shells that are themselves unsupervised."""
    for process in tree.values():
        above: Process | None = process
        while above is not None and above.parent != root:
            above = tree.get(above.parent)
            if above is None or not above.is_shell:
                break
        else:
            yield process


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read_stat(pid: int) -> tuple[int, int] | None:
    """(parent, start time in ticks); None for a zombie or no process. The name in brackets may contain anything."""
    data = _read(f"/proc/{pid}/stat")
    if data is None:
        return None
    fields = data[data.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in SHELLS
    except OSError:
        return False


def _catches_sigterm(pid: int) -> bool:
    for line in (_read(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith((b"SigCgt:", b"SigBlk:")) and int(line.split()[1], 16) & _SIGTERM_BIT:
            return True
    return False


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
