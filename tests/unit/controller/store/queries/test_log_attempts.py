"""The attempts whose logs make up a job's log."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from perdure.controller.store.engine.database import open_database
from perdure.controller.store.queries.log_attempts import load_refusals
from perdure.controller.store.records.jobs import TimelineEvent


def add_refusal(database: Engine, job_id: int, generation: int, data: dict[str, str]) -> None:
    with database.begin() as conn:
        entry = {"task_index": 0, "generation": generation, "at": 1.0, "kind": "attempt.refused", "message": ""}
        conn.execute(TimelineEvent.insert().values(job_id=job_id, data=data, **entry))


def test_load_refusals__returns_the_codes_of_one_job(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'perdure.db'}")
    add_refusal(database, 1, 1, {"code": "InsufficientInstanceCapacity"})
    add_refusal(database, 1, 2, {})
    add_refusal(database, 2, 1, {"code": "MaxSpotInstanceCountExceeded"})
    assert load_refusals(database, 1) == {(0, 1): "InsufficientInstanceCapacity"}
    assert load_refusals(database, 3) == {}
    database.dispose()
