"""What metadata services send, apart from what one cloud's means."""

from __future__ import annotations

import pytest

from perdure.agent.notices.metadata_service import epoch_seconds

AT = 1505722920.0  # 2017-09-18T08:22:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2017-09-18T08:22:00Z", AT),
        ("2017-09-18T08:22:00", AT),
        ("2017-09-18T08:22:00+00:00", AT),  # amazon-ec2-metadata-mock
        ("2017-09-18T10:22:00+02:00", AT),
        ("2017-09-18T03:52:00-0430", AT),
        ("2017-09-18T08:22:00.25Z", AT + 0.25),
        ("2017-09-18T08:22:00.123456789Z", AT + 0.123456789),
        ("18 Sep 2017 08:22:00 GMT", AT),
        ("Mon, 18 Sep 2017 08:22:00 GMT", AT),
        ("Mon, 18 Sep 2017 10:22:00 +0200", AT),
        ("soon", None),
        ("", None),
        ("2017-13-45T99:99:99Z", None),
        (None, None),
        (7, None),
    ],
)
def test_epoch_seconds__reads_every_form_of_a_time(text: object, expected: float | None) -> None:
    assert epoch_seconds(text) == pytest.approx(expected)
