"""Jobs that a controller accepts, or takes over."""

from __future__ import annotations

from perdure.controller.store.records.job_claims import Claim
from perdure.recovery import events
from unit.controller.world import World


def test_adoption__that_comes_after_the_end_of_the_job_changes_nothing(world: World) -> None:
    """Two threads submit the machines of a cluster. The one that has stored the job is late, and the job has ended."""
    world.has_lease = False  # nothing is launched yet
    job = world.submit()
    accepted = world.view(job)
    world.has_lease = True
    world.deliver(job, events.CancelRequested(0))
    world.pass_time(60)
    assert world.view(job).is_finalized
    assert job not in world.inbox.owned
    world.inbox.adopt([Claim(job, world.owner, 1)], {job: accepted})
    world.settle()
    assert job not in world.inbox.owned
