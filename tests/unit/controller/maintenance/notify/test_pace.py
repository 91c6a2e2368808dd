from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.maintenance.notify.pace import MAX_SINGLES, QUIET_S, ChannelPace, SendAs


def test_burst__waits_a_moment_before_it_is_sent() -> None:
    pace = ChannelPace()
    assert pace.choose(1, 100.0, 101.0) is SendAs.NOTHING
    assert pace.choose(1, 100.0, 102.0) is SendAs.SINGLES
    assert pace.choose(50, 100.0, 102.0) is SendAs.DIGEST


def test_digest__is_followed_by_silence() -> None:
    pace = ChannelPace()
    pace.on_sent(SendAs.DIGEST, 100.0)
    assert pace.choose(5, 100.0, 100.0 + QUIET_S - 1) is SendAs.NOTHING
    assert pace.choose(5, 100.0, 100.0 + QUIET_S) is SendAs.DIGEST


def test_configured_digest__collects_for_its_interval() -> None:
    pace = ChannelPace(digest_s=300.0)
    assert pace.choose(2, 100.0, 399.0) is SendAs.NOTHING
    assert pace.choose(2, 100.0, 400.0) is SendAs.DIGEST
    assert pace.choose(1, 100.0, 400.0) is SendAs.SINGLES


@given(st.lists(st.floats(0, 60), min_size=1, max_size=200))
def test_storm_of_a_minute__becomes_few_messages(times: list[float]) -> None:
    """However a thousand events are spread over a minute."""
    pace, messages, pending, waiting = ChannelPace(), 0, [], sorted((times * 1000)[:1000])
    for tenth in range(3000):
        now = tenth / 10
        while waiting and waiting[0] <= now:
            pending.append(waiting.pop(0))
        send_as = pace.choose(len(pending), pending[0] if pending else 0.0, now)
        if send_as is SendAs.DIGEST:
            messages, pending = messages + 1, []
        elif send_as is SendAs.SINGLES:
            messages, pending = messages + min(MAX_SINGLES, len(pending)), pending[MAX_SINGLES:]
        pace.on_sent(send_as, now)
    assert not pending
    assert messages <= 4
