"""The table of nodes' metrics over time."""

from __future__ import annotations

from sqlmodel import Field, SQLModel


class NodeMetricsRow(SQLModel, table=True):
    """What one node of an attempt used and reported, over its whole life (`metric_series` has the format of `data`)."""

    __tablename__ = "node_metrics"
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    updated_at: float = Field(index=True)
    data: bytes
