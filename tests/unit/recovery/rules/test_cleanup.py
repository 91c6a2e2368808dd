"""`rules.cleanup`: attempts on their way out."""

from __future__ import annotations

from perdure.recovery import actions, events
from support.worlds.job_driver import new_job


def test_drain__overdue_terminates_machine() -> None:
    driver = new_job().running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20)).launched()
    driver.tick(22)
    assert not driver.actions_of(actions.Terminate)
    driver.tick(1)
    assert [a.generation for a in driver.actions_of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
