"""The process tree below one process, from /proc, and who in it is to hear of a coming end first.

A polite end must not cost the checkpoint that it is meant to save. Three habits of training jobs decide the order:

- `python train.py | tee log`: were `tee` to die at once, the next `print` of train.py would break its pipe.
- Data loaders: workers that die raise an error in the training loop, before it has come to saving.
- `bash script`: the shell must not go on to the next line when the program that saved has ended.

So shells that wait for a child, and programs that catch SIGTERM, hear of it at once; what would merely die hears of it
when no program is left that is saving. A program below another program is its parent's affair, as under any init;
should the parent die first, the child becomes ours to tell.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ksh93", "mksh", "ash", "busybox", "fish"})
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


@dataclass(frozen=True)
class Process:
    """`started`: clock ticks since boot, so that with the pid it names a process for ever.

    `catches`: SIGTERM has a handler, or is blocked to be waited for.
    """

    pid: int
    parent: int
    started: int
    is_shell: bool = False
    catches: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.started)


def descendants(root: int) -> dict[int, Process]:
    """Every living process below `root`, by pid; zombies are left out."""
    parents = {pid: seen for pid in _pids() if (seen := _read_stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in parents.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, Process] = {}
    todo = list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        todo += children.get(pid, ())
        parent, started = parents[pid]
        found[pid] = Process(pid, parent, started, is_shell=_is_shell(pid), catches=_catches_sigterm(pid))
    return found


def with_variable(name: str, value: str) -> list[int]:
    """The processes that were started with `name=value` in their environment, as far as this user may look."""
    wanted = f"{name}={value}".encode()
    return [pid for pid in _pids() if wanted in (_read(f"/proc/{pid}/environ") or b"").split(b"\0")]


def is_saving(tree: Mapping[int, Process], root: int) -> bool:
    """Whether there is a program that may still be saving: one that catches SIGTERM and is no shell waiting for others.

    One that is exiting has no handlers any more; what it printed last may still be on its way through a `tee`.
    """
    with_children = {process.parent for process in tree.values()}
    return any(p.catches and not (p.is_shell and p.pid in with_children) for p in _ours(tree, root))


def to_tell(
    tree: Mapping[int, Process],
    root: int,
    *,
    at_first: frozenset[tuple[int, int]],
    told: frozenset[tuple[int, int]],
    saving: bool,
) -> list[Process]:
    """Who is to get SIGTERM now.

    `at_first`: the keys of those who lived when the end was announced. `told`: the keys of those who got it. What a
    shell starts later is the work of its trap and is left alone, until it is an orphan (a child of `root`). `saving`:
    what would merely die is still needed.
    """
    with_children = {process.parent for process in tree.values()}
    untold = [p for p in _ours(tree, root) if p.key not in told and (p.key in at_first or p.parent == root)]
    at_once = [p for p in untold if p.catches or (p.is_shell and p.pid in with_children)]
    return at_once if saving else untold


def _ours(tree: Mapping[int, Process], root: int) -> Iterator[Process]:
    """Those that no program answers for: children of `root`, and of shells that are ours."""
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
    """(parent, start time in ticks); None when it is gone or a zombie. The name in brackets may hold anything."""
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
