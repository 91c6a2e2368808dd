"""Notifies other daemons on the same PostgreSQL when a transaction commits. A hint: each daemon also polls.

A payload is a topic and the ids of jobs, for example `message 7` or `job 7,8`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from sqlalchemy import Connection, text

CHANNEL = "perdure"
MAX_IDS = 300  # a payload is shorter than 8000 bytes, and an id has at most 19 digits
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


class Topic(StrEnum):
    JOB = "job"  # its nodes have a new directive, or one of them is disconnected
    MESSAGE = "message"  # its owner has a peer message
    NODE_LOST = "node_lost"  # one of its nodes has lost its connection
    LOG = "log"  # its log has grown
    CLAIM = "claim"  # jobs can be claimed; the id is 0


def notify(conn: Connection, topic: Topic, job_id: int = 0) -> None:
    """Notify the other daemons when the transaction commits. On SQLite there are none."""
    notify_all(conn, topic, [job_id])


def notify_all(conn: Connection, topic: Topic, job_ids: Iterable[int]) -> None:
    """`notify` for several jobs with as few notifications as possible, since every daemon receives each of them.

    `job_ids` is not read on SQLite.
    """
    if conn.dialect.name == "postgresql":
        ids = list(job_ids)
        for start in range(0, len(ids), MAX_IDS):
            batch = ids[start : start + MAX_IDS]
            conn.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload(topic, batch)})


def payload(topic: Topic, job_ids: Sequence[int]) -> str:
    """The payload for at most `MAX_IDS` jobs."""
    return f"{topic} {','.join(map(str, job_ids))}"


def parse_payload(payload: str) -> tuple[Topic, list[int]] | None:
    """The topic and the jobs of a payload; None if only a newer daemon understands it."""
    topic, _, rest = payload.partition(" ")
    ids = rest.split(",")
    if topic not in set(Topic) or not all(id.isdecimal() for id in ids):
        return None
    return Topic(topic), [int(id) for id in ids]
