"""Who stands back for users, and for how long at most."""

from __future__ import annotations

import threading
import time

import pytest

from perdure.controller.courtesy import Courtesy


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_nobody_waits_where_no_user_does() -> None:
    courtesy = Courtesy()
    with courtesy:
        pass
    _work(0.05)
    began = time.monotonic()
    courtesy.give_way()
    assert time.monotonic() - began < 0.05


def test_who_works_waits_until_the_last_user_is_answered() -> None:
    courtesy, entered, order = Courtesy(), threading.Event(), []

    def answer() -> None:
        with courtesy:
            entered.set()
            _work(0.01)
            order.append("answered")

    with courtesy:
        thread = threading.Thread(target=answer)
        thread.start()
        entered.wait(10.0)
    _work(0.3)
    courtesy.give_way()
    order.append("went on")
    thread.join()
    assert order == ["answered", "went on"]


@pytest.mark.parametrize(("worked_s", "waits_s"), [(0.02, 0.18), (0.2, 0.5)])
def test_it_waits_no_longer_than_nine_times_what_it_worked_and_half_a_second(worked_s: float, waits_s: float) -> None:
    courtesy = Courtesy()
    courtesy.give_way()
    with courtesy:
        _work(worked_s)
        began = time.monotonic()
        courtesy.give_way()
        assert time.monotonic() - began >= waits_s - 0.005
        courtesy.give_way()  # it has done nothing since: this returns
