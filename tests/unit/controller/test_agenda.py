"""What waits for the reconcile thread, and what of it is pressing."""

from __future__ import annotations

import pytest

from perdure.controller import turns
from perdure.controller.agenda import Agenda, Nothing
from perdure.controller.clock import SystemClock
from perdure.controller.turns import Turn
from perdure.recovery import events

_WORD = Turn(1)
_NOTICE = Turn(2, events.NoticeGiven(task=0, generation=1, rank=0, deadline=1.0))


def test_it_is_pressed_from_a_notice_that_came_in_until_it_was_taken() -> None:
    agenda: Agenda[Turn, Turn] = Agenda(SystemClock(), 1.0, turns.presses)
    agenda.put(_WORD)
    assert not agenda.is_pressed
    agenda.put(_NOTICE)
    agenda.put(_WORD)
    pressed = []
    for _ in range(3):
        pressed.append(agenda.is_pressed)
        agenda.next(block=False)
    assert pressed == [True, True, False]
    with pytest.raises(Nothing):
        agenda.next(block=False)


def test_what_was_taken_and_put_back_presses_nobody() -> None:
    agenda: Agenda[Turn, Turn] = Agenda(SystemClock(), 1.0, turns.presses)
    agenda.put(_NOTICE)
    taken = agenda.next(block=False)
    assert taken is not None
    agenda.put_back([taken])
    assert (agenda.is_pressed, agenda.next(block=False), agenda.is_pressed) == (False, _NOTICE, False)
