"""The directives of attempts that the view of a job does not have."""

from __future__ import annotations

import pytest

from perdure.controller.reconcile.work_items import directive_of
from perdure.recovery.directive import STOP, Directive
from perdure.recovery.job import JobView, TaskView


@pytest.mark.parametrize(("generation", "directive"), [(1, STOP), (2, STOP), (3, None), (4, None)])
def test_unknown_attempt__is_stopped_unless_a_successor_has_requested_it(
    generation: int, directive: Directive | None
) -> None:
    job = JobView(7, (TaskView(0, (), next_generation=3),))
    assert directive_of(job, (7, 0, generation)) == directive
