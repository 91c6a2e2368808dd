"""Wakes other daemons on the same PostgreSQL when a transaction commits. A hint: each looks by itself now and then.

A payload is a topic and a job's id, as in `letter 7`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import Connection, text

CHANNEL = "holdfast"


class Topic(StrEnum):
    JOB = "job"  # a turn of it was recorded: its nodes may have another directive
    LETTER = "letter"  # there is something for its owner
    SILENCE = "silence"  # one of its nodes is not connected any more
    LOG = "log"  # it has grown
    CLAIM = "claim"  # jobs can be claimed; its id means nothing


def notify(conn: Connection, topic: Topic, job_id: int = 0) -> None:
    """Tell the other daemons when the transaction commits. On SQLite there are none."""
    notify_all(conn, topic, [job_id])


def notify_all(conn: Connection, topic: Topic, job_ids: Sequence[int]) -> None:
    """`notify` for several jobs."""
    if conn.dialect.name == "postgresql":
        payloads = [{"channel": CHANNEL, "payload": f"{topic} {job_id}"} for job_id in job_ids]
        conn.execute(text("SELECT pg_notify(:channel, :payload)"), payloads)
