"""Invalid frames are all counted; a line is logged per attempt and minute."""

from __future__ import annotations

from structlog.testing import capture_logs

from perdure.controller.nodes.rejected_frames import RejectedFrames


def test_rejected_frames__are_logged_once_a_minute_per_attempt() -> None:
    now = [0.0]
    rejected = RejectedFrames(lambda: now[0])
    with capture_logs() as lines:
        for _ in range(100):
            rejected.count(((7, 0, 1), 0), "why")
        rejected.count(((7, 0, 2), 1), "why")
        now[0] = 61.0
        rejected.count(((7, 0, 1), 0), "why")
    assert rejected.total == 102
    assert [(line["job"], line["generation"], line["rank"], line["repeated"]) for line in lines] == [
        (7, 1, 0, 0), (7, 2, 1, 0), (7, 1, 0, 99),
    ]  # fmt: skip


def test_rejected_frames__of_many_attempts_take_bounded_memory() -> None:
    rejected = RejectedFrames()
    with capture_logs():
        for job in range(5000):
            rejected.count(((job, 0, 1), 0), "why")
    assert len(rejected._offenders) <= 1000
    assert rejected.total == 5000
