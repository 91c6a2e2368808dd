"""Alembic's entry point. `database.migrate` passes the connection."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

from perdure.controller.store import tables

assert tables.Meta.metadata is SQLModel.metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=SQLModel.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
