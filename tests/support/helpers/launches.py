"""Queued launches for tests of the launch queue and the quotas."""

from __future__ import annotations

from hypothesis import strategies as st

from perdure.controller.execute.call_order import QueuedLaunch

USERS = ("ada", "bob", "eve")


def launch(job: int, user: str = "ada", priority: int = 0, machines: int = 1, *, has_run: bool = False) -> QueuedLaunch:
    return QueuedLaunch((job, 0, 1), user, priority, machines, has_run)


launches = st.lists(
    st.builds(
        lambda job, user, priority, machines, has_run: launch(job, user, priority, machines, has_run=has_run),
        st.integers(1, 30),
        st.sampled_from(USERS),
        st.integers(-2, 2),
        st.integers(0, 4),
        st.booleans(),
    ),
    max_size=40,
    unique_by=lambda one: one.key,
)
