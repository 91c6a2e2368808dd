"""Which call of a cloud is next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.execute.call_order import AdmissionDecision, CloudQueue, FairQueue, QueuedLaunch
from support.helpers.launches import USERS, launch, launches


def admit(_launch: QueuedLaunch, _item: object) -> AdmissionDecision:
    return AdmissionDecision.ADMIT


def admitted_jobs(*queued: QueuedLaunch) -> list[int]:
    """Jobs in the order in which their launches are admitted, if nothing delays them."""
    fair_queue: FairQueue[int] = FairQueue()
    for one in queued:
        fair_queue.add(one, one.key[0])
    admitted = []
    while (entry := fair_queue.next(admit)) is not None:
        admitted.append(entry[1])
    return admitted


def test_fair_queue__many_launches_of_one_user_do_not_delay_another() -> None:
    many = [launch(job) for job in range(1, 10_001)]
    assert admitted_jobs(*many, launch(10_001, "bob"))[:3] == [1, 10_001, 2]


def test_fair_queue__new_user_starts_at_the_virtual_time() -> None:
    fair_queue: FairQueue[int] = FairQueue()
    for job in range(1, 101):
        fair_queue.add(launch(job), job)
    for _ in range(50):
        fair_queue.next(admit)
    for job in range(101, 121):
        fair_queue.add(launch(job, "bob"), job)
    admitted = [fair_queue.next(admit) for _ in range(20)]
    assert Counter(one[0].user for one in admitted if one) == {"ada": 10, "bob": 10}


def test_fair_queue__one_user_is_served_recovering_jobs_first_then_oldest() -> None:
    assert admitted_jobs(launch(3), launch(1), launch(9, has_run=True), launch(2)) == [9, 1, 2, 3]


def test_fair_queue__wide_launch_counts_every_machine() -> None:
    wide, narrow = [launch(job, "ada", machines=4) for job in range(1, 5)], [launch(job, "bob") for job in range(5, 13)]
    assert admitted_jobs(*wide, *narrow)[:6] == [1, 5, 6, 7, 8, 2]


@given(launches)
def test_fair_queue__admits_all_by_priority(queued: list[QueuedLaunch]) -> None:
    admitted = admitted_jobs(*queued)
    assert sorted(admitted) == sorted(one.key[0] for one in queued)
    launch_of = {one.key[0]: one for one in queued}
    priorities = [launch_of[job].priority for job in admitted]
    assert priorities == sorted(priorities, reverse=True)
    for user in USERS:
        for priority in range(-2, 3):
            of_user = [launch_of[job] for job in admitted]
            own = [one for one in of_user if (one.user, one.priority) == (user, priority)]
            assert own == sorted(own, key=lambda one: (not one.has_run, one.key[0]))


@given(st.lists(st.sampled_from(USERS), min_size=1, max_size=60))
def test_fair_queue__waiting_users_are_served_evenly(users: list[str]) -> None:
    left, served = Counter(users), Counter[str]()
    for job in admitted_jobs(*(launch(job, user) for job, user in enumerate(users))):
        served[users[job]] += 1
        left[users[job]] -= 1
        waiting = [served[user] for user in USERS if left[user]]
        assert max(waiting, default=0) - min(waiting, default=0) <= 1


def test_cloud_queue__control_calls_go_first_but_do_not_starve_launches() -> None:
    cloud_queue: CloudQueue[str] = CloudQueue(1)
    cloud_queue.add("launch", launch(1))
    control_calls = [f"terminate {number}" for number in range(20)]
    for call in control_calls:
        cloud_queue.add(call, None)
    begun = []
    while (entry := cloud_queue.next(admit)) is not None:
        begun.append(entry[2])
        cloud_queue.on_finished(entry[0], is_throttled=False)
    assert begun[0] == "terminate 0"
    assert begun.index("launch") == 8
    assert [one for one in begun if one != "launch"] == control_calls
