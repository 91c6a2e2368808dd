"""The tables of services, in the style of `store.tables`: times are epoch seconds (UTC)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Index, Text
from sqlmodel import Field, SQLModel


class ServiceRow(SQLModel, table=True):
    """A service: replicas of one program behind one endpoint."""

    __tablename__ = "service"
    __table_args__ = (Index("ix_service_name", "name", "id"), {"sqlite_autoincrement": True})
    id: int | None = Field(default=None, primary_key=True)
    name: str
    #: The name while the service exists, None after it is down: a name may be used again.
    active_name: str | None = Field(default=None, unique=True)
    user: str = ""
    #: What the user requested: UP or DOWN.
    wanted: str
    created_at: float
    #: The newest version.
    version: int = 1
    #: How the newest version replaces the one before: rolling or blue_green.
    mode: str = "rolling"
    #: The port of the endpoint; None after it is down.
    port: int | None = Field(default=None, unique=True)
    #: `token`, `tls_key` and `tls_cert` of the endpoint, as far as it has them.
    secrets: bytes | None = None
    next_replica: int = 1
    #: How many replicas the load asks for, and since when it has asked for more, or for fewer.
    target: int = 0
    above_since: float | None = None
    below_since: float | None = None
    #: When a replica was first ready, since the service is up or has lost all of them.
    ready_since: float | None = None
    idempotency_key: str | None = Field(default=None, unique=True)
    #: The controller that decides about it and runs its proxy; None: none does yet.
    owner: str | None = None
    #: What the proxy reports, where several controllers share the database: see `maintenance.serve.shared_state`.
    report: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))


class ServiceVersionRow(SQLModel, table=True):
    """A version of a service: what the user sent."""

    __tablename__ = "service_version"
    service_id: int = Field(primary_key=True)
    version: int = Field(primary_key=True)
    created_at: float
    #: The `service` section without secrets, the port of the program, and a short form of the machines.
    section: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    app_port: int
    resources: str = ""
    uses_spot: bool = False
    #: The whole task, sealed, since it may hold secrets anywhere.
    config: bytes | None = None
    #: When a replica of this version was last found ready.
    ready_at: float | None = None
    idempotency_key: str | None = Field(default=None, unique=True)
    #: Why a replica that kept its machine could not start it, and when.
    failure: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    failed_at: float | None = None


class ReplicaRow(SQLModel, table=True):
    """A replica of a service. Its job has the key `service/<id>/<number>`."""

    __tablename__ = "service_replica"
    __table_args__ = (Index("ix_service_replica_job", "job_id"),)
    service_id: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    version: int
    is_spot: bool = False
    created_at: float
    job_id: int | None = None  # None until its job is submitted
    #: When it was first ready.
    ready_at: float | None = None
    #: Since when it is being ended, how that ends (a ReplicaStatus) and why.
    retired_at: float | None = None
    retired_as: str | None = None
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
    #: The last status, once nothing of it is left.
    final_status: str | None = None
    ended_at: float | None = None
    #: How many versions its node has got since it was launched.
    revision: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    #: The version that it gets on its machine, once it has answered its requests, and since when.
    changes_to: int | None = None
    changes_at: float | None = None


class ServiceEventRow(SQLModel, table=True):
    """An entry of the timeline of a service."""

    __tablename__ = "service_event"
    __table_args__ = (Index("ix_service_event_service", "service_id", "id"), {"sqlite_autoincrement": True})
    id: int | None = Field(default=None, primary_key=True)
    service_id: int
    at: float
    #: One of `maintenance.serve.timeline.KINDS`.
    kind: str
    version: int | None = None
    replica: int | None = None
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
