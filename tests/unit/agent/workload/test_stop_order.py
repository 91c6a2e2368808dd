"""The order in which processes get SIGTERM."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

from perdure.agent.workload import stop_order
from perdure.agent.workload.stop_order import Process, is_saving, to_signal

ROOT = 1


def next_pids(*tree: Process, first: tuple[int, ...] | None = None, signalled: tuple[int, ...] = ()) -> set[int]:
    """The pids that get SIGTERM next. `first`: the processes alive at the stop (all by default)."""
    table = {process.pid: process for process in tree}
    alive_at_stop = frozenset(p.key for p in tree if first is None or p.pid in first)
    saving = is_saving(table, ROOT)
    keys = frozenset((pid, 0) for pid in signalled)
    return {p.pid for p in to_signal(table, ROOT, alive_at_stop=alive_at_stop, signalled=keys, saving=saving)}


def shell(pid: int, parent: int = ROOT, *, catches: bool = False) -> Process:
    return Process(pid, parent, 0, is_shell=True, catches=catches)


def saver(pid: int, parent: int = ROOT) -> Process:
    return Process(pid, parent, 0, catches=True)


def plain(pid: int, parent: int = ROOT) -> Process:
    return Process(pid, parent, 0)


def test_to_signal__includes_a_script_and_its_program() -> None:
    assert next_pids(shell(2), saver(3, 2)) == {2, 3}
    assert next_pids(shell(2), plain(3, 2)) == {2, 3}


def test_to_signal__leaves_the_reader_of_a_pipe_until_its_writer_ended() -> None:
    assert next_pids(shell(2), saver(3, 2), plain(4, 2)) == {2, 3}
    assert next_pids(saver(3), plain(4), signalled=(3,)) == set()
    assert next_pids(plain(4), signalled=(3,)) == {4}


def test_to_signal__leaves_a_loop_that_reads_a_pipe() -> None:
    assert next_pids(shell(2), saver(3, 2), shell(4, 2)) == {2, 3}


def test_to_signal__leaves_workers_to_their_program() -> None:
    assert next_pids(shell(2), saver(3, 2), saver(4, 3), plain(5, 3)) == {2, 3}


def test_to_signal__includes_the_program_of_a_launcher_without_a_handler() -> None:
    assert next_pids(shell(2), plain(3, 2), saver(4, 3)) == {2, 3}
    assert next_pids(saver(4), signalled=(2, 3)) == {4}


def test_to_signal__includes_shells_below_shells() -> None:
    assert next_pids(shell(2), shell(3, 2), saver(4, 3)) == {2, 3, 4}


def test_to_signal__never_signals_a_process_twice() -> None:
    assert next_pids(shell(2), saver(3, 2), signalled=(2, 3)) == set()


def test_to_signal__leaves_what_a_trap_starts() -> None:
    assert next_pids(shell(2, catches=True), plain(9, 2), first=(2,), signalled=(2,)) == set()
    assert next_pids(shell(2, catches=True), plain(3, 2), first=(2, 3), signalled=(2,)) == {3}


def test_to_signal__includes_late_orphans() -> None:
    assert next_pids(plain(9), first=(), signalled=(2,)) == {9}


def test_descendants__of_real_processes() -> None:
    catcher = "import signal, time; signal.signal(signal.SIGTERM, print); print('up', flush=True); time.sleep(60)"
    script = f"{sys.executable} -c {shlex.quote(catcher)} & sleep 60 & wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as bash:
        try:
            assert bash.stdout is not None
            assert bash.stdout.readline() == b"up\n"
            tree = stop_order.descendants(os.getpid())
            assert tree[bash.pid].is_shell
            below = [p for p in tree.values() if p.parent == bash.pid]
            assert sorted(p.catches for p in below) == [False, True]
            assert not any(p.is_shell for p in below)
            assert set(stop_order.descendants(bash.pid)) == {p.pid for p in below}
        finally:
            os.killpg(bash.pid, signal.SIGKILL)


def test_find_by_variable__matches_the_whole_value() -> None:
    with subprocess.Popen(["sleep", "60"], env={"MARK": "a/b"}) as sleeper:
        try:
            assert sleeper.pid in stop_order.find_by_variable("MARK", "a/b")
            assert sleeper.pid not in stop_order.find_by_variable("MARK", "a")
        finally:
            sleeper.kill()


def test_descendants__skips_zombies() -> None:
    with subprocess.Popen(["true"]) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        assert dead.pid not in stop_order.descendants(os.getpid())
