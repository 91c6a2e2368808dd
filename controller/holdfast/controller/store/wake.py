"""Wakes other daemons on the same PostgreSQL when a transaction commits. A hint: each looks by itself now and then.

A payload is a topic and a job's id, as in `letter 7`.
"""

from __future__ import annotations

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
    if conn.dialect.name == "postgresql":
        payload = f"{topic} {job_id}"
        conn.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": payload})
