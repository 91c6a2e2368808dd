"""Who hears of a coming end first."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

from perdure.agent import processes
from perdure.agent.processes import Process, is_saving, to_tell

ROOT = 1


def tell(*tree: Process, first: tuple[int, ...] | None = None, told: tuple[int, ...] = ()) -> set[int]:
    """The pids told next; every process started at tick 0 unless it says otherwise."""
    table = {process.pid: process for process in tree}
    at_first = frozenset(p.key for p in tree if first is None or p.pid in first)
    saving = is_saving(table, ROOT)
    keys = frozenset((pid, 0) for pid in told)
    return {p.pid for p in to_tell(table, ROOT, at_first=at_first, told=keys, saving=saving)}


def shell(pid: int, parent: int = ROOT, *, catches: bool = False) -> Process:
    return Process(pid, parent, 0, is_shell=True, catches=catches)


def saver(pid: int, parent: int = ROOT) -> Process:
    return Process(pid, parent, 0, catches=True)


def plain(pid: int, parent: int = ROOT) -> Process:
    return Process(pid, parent, 0)


def test_a_script_and_its_program() -> None:
    assert tell(shell(2), saver(3, 2)) == {2, 3}
    assert tell(shell(2), plain(3, 2)) == {2, 3}


def test_the_reader_of_a_pipe_waits_for_its_writer() -> None:
    assert tell(shell(2), saver(3, 2), plain(4, 2)) == {2, 3}
    assert tell(saver(3), plain(4), told=(3,)) == set()
    assert tell(plain(4), told=(3,)) == {4}


def test_a_loop_that_reads_a_pipe_waits_too() -> None:
    assert tell(shell(2), saver(3, 2), shell(4, 2)) == {2, 3}


def test_workers_are_their_programs_affair() -> None:
    assert tell(shell(2), saver(3, 2), saver(4, 3), plain(5, 3)) == {2, 3}


def test_a_launcher_that_merely_dies_leaves_its_program_to_us() -> None:
    assert tell(shell(2), plain(3, 2), saver(4, 3)) == {2, 3}
    assert tell(saver(4), told=(2, 3)) == {4}


def test_shells_below_shells() -> None:
    assert tell(shell(2), shell(3, 2), saver(4, 3)) == {2, 3, 4}


def test_nobody_is_told_twice() -> None:
    assert tell(shell(2), saver(3, 2), told=(2, 3)) == set()


def test_what_a_trap_starts_is_left_alone() -> None:
    assert tell(shell(2, catches=True), plain(9, 2), first=(2,), told=(2,)) == set()
    assert tell(shell(2, catches=True), plain(3, 2), first=(2, 3), told=(2,)) == {3}


def test_an_orphan_is_ours_however_late_it_came() -> None:
    assert tell(plain(9), first=(), told=(2,)) == {9}


def test_the_tree_of_real_processes() -> None:
    catcher = "import signal, time; signal.signal(signal.SIGTERM, print); print('up', flush=True); time.sleep(60)"
    script = f"{sys.executable} -c {shlex.quote(catcher)} & sleep 60 & wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as bash:
        try:
            assert bash.stdout is not None
            assert bash.stdout.readline() == b"up\n"
            tree = processes.descendants(os.getpid())
            assert tree[bash.pid].is_shell
            below = [p for p in tree.values() if p.parent == bash.pid]
            assert sorted(p.catches for p in below) == [False, True]
            assert not any(p.is_shell for p in below)
            assert set(processes.descendants(bash.pid)) == {p.pid for p in below}
        finally:
            os.killpg(bash.pid, signal.SIGKILL)


def test_processes_are_found_by_their_environment() -> None:
    with subprocess.Popen(["sleep", "60"], env={"MARK": "a/b"}) as sleeper:
        try:
            assert sleeper.pid in processes.with_variable("MARK", "a/b")
            assert sleeper.pid not in processes.with_variable("MARK", "a")
        finally:
            sleeper.kill()


def test_zombies_are_no_descendants() -> None:
    with subprocess.Popen(["true"]) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        assert dead.pid not in processes.descendants(os.getpid())
