"""For how long the nodes of replicas have been silent."""

from __future__ import annotations

from perdure.controller.maintenance.serve.reader import BRIEF_SILENCE_S, SilenceClock
from perdure.controller.runtime.clock import ManualClock

KEY, OTHER = (1, 0, 1), (2, 0, 1)


def test_silence__is_brief_at_first() -> None:
    clock = ManualClock()
    silence = SilenceClock(clock.now)
    assert silence.is_short(KEY, is_connected=False), "a controller that has just started has no word of any node"
    clock.advance(BRIEF_SILENCE_S - 1)
    assert silence.is_short(KEY, is_connected=False)
    assert (silence.has_lasted(KEY, 3.0), silence.has_lasted(OTHER, 3.0)) == (True, False)
    clock.advance(1)
    assert not silence.is_short(KEY, is_connected=False)


def test_silence__ends_with_a_report() -> None:
    clock = ManualClock()
    silence = SilenceClock(clock.now)
    silence.is_short(KEY, is_connected=False)
    clock.advance(BRIEF_SILENCE_S)
    assert not silence.is_short(KEY, is_connected=True)
    assert silence.is_short(KEY, is_connected=False), "it counts anew"
    silence.keep({OTHER, None})
    assert not silence.has_lasted(KEY, 0.0), "what is no replica any more is forgotten"
