"""The tables of messages to other controllers and to users, in the style of `tables`: times are epoch seconds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, Text, UniqueConstraint, text
from sqlmodel import Field, SQLModel

# An id that may exceed 32 bits. SQLite assigns ids only to INTEGER columns, which have 64 bits there.
BIG_ID = BigInteger().with_variant(Integer(), "sqlite")


class PeerMessageRow(SQLModel, table=True):
    """A message to the owner of a job from another daemon. The transaction that records its event deletes it."""

    __tablename__ = "peer_message"
    id: int | None = Field(default=None, sa_column=Column(BIG_ID, primary_key=True))
    job_id: int = Field(index=True)
    at: float
    body: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))


class NotificationRow(SQLModel, table=True):
    """An event on its way to one channel: inserted by the transaction that records the event (the outbox)."""

    __tablename__ = "notification"
    __table_args__ = (
        UniqueConstraint("event_id", "channel"),
        Index("ix_notification_pending", "channel", "id", sqlite_where=text("done_at IS NULL")),
        Index("ix_notification_done", "done_at"),
    )
    id: int | None = Field(default=None, sa_column=Column(BIG_ID, primary_key=True))
    event_id: str
    channel: str
    kind: str
    job_id: int | None = None
    at: float
    body: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    try_count: int = 0
    wake_at: float
    leased_by: str | None = None
    leased_until: float = 0.0
    done_at: float | None = None
    outcome: str | None = None
    error: str | None = Field(default=None, sa_column=Column(Text))
