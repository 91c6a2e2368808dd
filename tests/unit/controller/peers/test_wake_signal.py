"""The wake signal keeps every job until the next poll takes it."""

from __future__ import annotations

from perdure.controller.peers.wake_signal import WakeSignal


def test_take__returns_all_jobs_since_the_last_one() -> None:
    signal = WakeSignal()
    signal.wake([1, 2])
    signal.wake([2, 3])
    assert signal.wait(0.0)
    assert signal.take() == {1, 2, 3}
    assert not signal.wait(0.0)
    assert signal.take() == set()


def test_wake__without_jobs_wakes_the_poll() -> None:
    signal = WakeSignal()
    signal.wake()
    assert signal.wait(0.0)
    assert signal.take() == set()


def test_wake__full_scan_stays_due() -> None:
    signal = WakeSignal()
    signal.is_full_scan_due = False
    signal.wake(full=True)
    signal.wake([1])
    signal.take()
    assert signal.is_full_scan_due
