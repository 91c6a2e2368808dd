"""Wakes other daemons on the same PostgreSQL when a transaction commits. A hint: each looks by itself now and then.

A payload is a topic and the ids of jobs, as in `letter 7` and `job 7,8`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import Connection, text

CHANNEL = "perdure"
MOST_IDS = 300  # a payload has less than 8000 bytes, and an id at most 19 digits
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


class Topic(StrEnum):
    JOB = "job"  # its nodes have another directive, or one of them counts as silent
    LETTER = "letter"  # there is something for its owner
    SILENCE = "silence"  # one of its nodes is not connected any more
    LOG = "log"  # it has grown
    CLAIM = "claim"  # jobs can be claimed; its id means nothing


def notify(conn: Connection, topic: Topic, job_id: int = 0) -> None:
    """Tell the other daemons when the transaction commits. On SQLite there are none."""
    notify_all(conn, topic, [job_id])


def notify_all(conn: Connection, topic: Topic, job_ids: Sequence[int]) -> None:
    """`notify` for several jobs, in one notification: each is an event for every daemon."""
    if conn.dialect.name == "postgresql":
        for start in range(0, len(job_ids), MOST_IDS):
            said = payload(topic, job_ids[start : start + MOST_IDS])
            conn.execute(_NOTIFY, {"channel": CHANNEL, "payload": said})


def payload(topic: Topic, job_ids: Sequence[int]) -> str:
    """What tells of at most `MOST_IDS` jobs."""
    return f"{topic} {','.join(map(str, job_ids))}"


def heard(payload: str) -> tuple[Topic, list[int]] | None:
    """What a payload says; None for what only a newer daemon understands."""
    topic, _, said = payload.partition(" ")
    ids = said.split(",")
    if topic not in set(Topic) or not all(id.isdecimal() for id in ids):
        return None
    return Topic(topic), [int(id) for id in ids]
