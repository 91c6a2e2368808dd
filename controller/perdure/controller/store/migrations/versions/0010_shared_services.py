"""Let several controllers share services, and give services a timeline.

`service.owner`: the controller that runs the service's proxy and decides about it. `service.report`: what the proxy
reports, for the others. `agent_connection.probe`: the newest readiness report of a replica's node, which may be
connected to another controller. `controller.peer_url` and `peer_certificate`: how the other controllers reach this one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("service", sa.Column("owner", sa.String(), nullable=True))
    op.add_column("service", sa.Column("report", sa.JSON(), nullable=True))
    op.add_column("agent_connection", sa.Column("probe", sa.JSON(), nullable=True))
    op.add_column("controller", sa.Column("peer_url", sa.String(), nullable=True))
    op.add_column("controller", sa.Column("peer_certificate", sa.String(), nullable=True))
    op.create_table(
        "service_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("service_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("replica", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_service_event_service", "service_event", ["service_id", "id"])
