"""Which call of a cloud goes next, and how many are under way at a time, whatever the order of things."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.bounds import Bounds
from perdure.controller.caps import Caps, Standing
from perdure.controller.lanes import Lane, Launch, Line, Verdict, Window

USERS = ("ada", "bob", "eve")


def launch(job: int, user: str = "ada", priority: int = 0, machines: int = 1, *, begun: bool = False) -> Launch:
    return Launch((job, 0, 1), user, priority, machines, begun)


def in_order(*wanted: Launch) -> list[int]:
    """Jobs in the order in which their launches begin, where nothing holds them back."""
    line: Line[int] = Line()
    for one in wanted:
        line.add(one, one.key[0])
    begun = []
    while (found := line.next(lambda _launch, _item: Verdict.BEGIN)) is not None:
        begun.append(found[1])
    return begun


launches = st.lists(
    st.builds(
        lambda job, user, priority, machines, begun: launch(job, user, priority, machines, begun=begun),
        st.integers(1, 30),
        st.sampled_from(USERS),
        st.integers(-2, 2),
        st.integers(0, 4),
        st.booleans(),
    ),
    max_size=40,
    unique_by=lambda one: one.key,
)


def test_ten_thousand_of_one_user_do_not_delay_another() -> None:
    many = [launch(job) for job in range(1, 10_001)]
    assert in_order(*many, launch(10_001, "bob"))[:3] == [1, 10_001, 2]


def test_who_comes_later_begins_where_the_others_are() -> None:
    line: Line[int] = Line()
    for job in range(1, 101):
        line.add(launch(job), job)
    for _ in range(50):
        line.next(lambda _launch, _item: Verdict.BEGIN)
    for job in range(101, 121):
        line.add(launch(job, "bob"), job)
    found = [line.next(lambda _launch, _item: Verdict.BEGIN) for _ in range(20)]
    assert Counter(one[0].user for one in found if one) == {"ada": 10, "bob": 10}


def test_a_users_own_are_in_the_order_of_their_jobs_and_those_that_recover_first() -> None:
    assert in_order(launch(3), launch(1), launch(9, begun=True), launch(2)) == [9, 1, 2, 3]


def test_wide_launches_count_as_all_of_their_machines() -> None:
    wide, narrow = [launch(job, "ada", machines=4) for job in range(1, 5)], [launch(job, "bob") for job in range(5, 13)]
    assert in_order(*wide, *narrow)[:6] == [1, 5, 6, 7, 8, 2]


@given(launches)
def test_all_begin_and_by_priority(wanted: list[Launch]) -> None:
    begun = in_order(*wanted)
    assert sorted(begun) == sorted(one.key[0] for one in wanted)
    of = {one.key[0]: one for one in wanted}
    priorities = [of[job].priority for job in begun]
    assert priorities == sorted(priorities, reverse=True)
    for user in USERS:
        for priority in range(-2, 3):
            own = [of[job] for job in begun if (of[job].user, of[job].priority) == (user, priority)]
            assert own == sorted(own, key=lambda one: (not one.is_begun, one.key[0]))


@given(st.lists(st.sampled_from(USERS), min_size=1, max_size=60))
def test_users_who_wait_are_served_alike(users: list[str]) -> None:
    left, served = Counter(users), Counter[str]()
    for job in in_order(*(launch(job, user) for job, user in enumerate(users))):
        served[users[job]] += 1
        left[users[job]] -= 1
        waiting = [served[user] for user in USERS if left[user]]
        assert max(waiting, default=0) - min(waiting, default=0) <= 1


def test_what_ends_machines_goes_first_and_launches_are_not_shut_out() -> None:
    lane: Lane[str] = Lane(1)
    lane.add("buy", launch(1))
    for number in range(20):
        lane.add(f"end {number}", None)
    begun = []
    while (found := lane.next(lambda _launch, _item: Verdict.BEGIN)) is not None:
        begun.append(found[2])
        lane.ended(found[0], is_throttled=False)
    assert begun[0] == "end 0"
    assert begun.index("buy") == 8
    assert [one for one in begun if one != "buy"] == [f"end {number}" for number in range(20)]


# --- how many at a time -----------------------------------------------------------------------------------


def test_a_window_doubles_until_the_first_complaint_and_grows_by_one_a_round_from_then_on() -> None:
    window, open_calls = Window(64), deque[int]()
    sizes = [window.size]
    for complains in (False, False, True, False, True, False):
        while window.has_room:
            open_calls.append(window.begin())
        for _ in range(len(open_calls)):
            window.end(open_calls.popleft(), is_throttled=complains)
            while window.has_room:
                open_calls.append(window.begin())
        sizes.append(window.size)
    assert sizes == [16, 32, 64, 32, 33, 16, 17]


def test_a_window_that_is_not_in_use_does_not_grow() -> None:
    window = Window(64)
    for _ in range(1000):
        window.end(window.begin(), is_throttled=False)
    assert window.size == 16


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=200))
def test_never_more_than_the_most_nor_less_than_one(most: int, moves: list[tuple[bool, int]]) -> None:
    window, open_calls = Window(most), list[int]()
    for is_throttled, which in moves:
        while window.has_room:
            open_calls.append(window.begin())
        assert 1 <= window.size <= most
        assert window.in_flight == len(open_calls) <= most
        window.end(open_calls.pop(which % len(open_calls)), is_throttled=is_throttled)


# --- caps -------------------------------------------------------------------------------------------------


@dataclass
class Cloud:
    """A lane under caps, and what the database would know of it."""

    bounds: Bounds
    lane: Lane[Launch] = field(default_factory=lambda: Lane(8))
    unanswered: dict[Launch, int] = field(default_factory=dict)
    bought: set[Launch] = field(default_factory=set)
    begun: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caps = Caps(self.bounds)
        self.look()

    def judge(self, one: Launch, _item: Launch) -> Verdict:
        if self.caps.why_user_waits(one):
            return Verdict.PASS
        return Verdict.STOP if self.caps.why_cloud_is_full("aws", one) else Verdict.BEGIN

    def look(self) -> None:
        mark = self.caps.mark()
        machines = {one.key: ("aws", one.machines) for one in self.bought}
        users = {one.key[0]: one.user for one in self.bought}
        self.caps.update(Standing(machines, users, frozenset(one.key for one in self.unanswered)), mark)
        self.begin()

    def begin(self) -> None:
        while (found := self.lane.next(self.judge)) is not None:
            number, one, _ = found
            assert one is not None
            self.caps.begin("aws", one)
            self.unanswered[one] = number
            self.begun.append(one.key[0])
        self.check()

    def check(self) -> None:
        there = [*self.unanswered, *self.bought]
        fitting = [one for one in there if one.machines <= (self.bounds.most_machines.get("aws") or 99)]
        assert sum(one.machines for one in fitting) <= self.bounds.most_machines.get("aws", 999)
        jobs = Counter(one.user for one in there if not one.is_begun and one.machines)
        assert max(jobs.values(), default=0) <= (self.bounds.most_running_per_user or 999)

    def answer(self, *, is_bought: bool) -> None:
        one = next(iter(self.unanswered))
        self.lane.ended(self.unanswered.pop(one), is_throttled=False)
        if is_bought and one.machines:
            self.bought.add(one)
        else:
            self.caps.failed(one)
        self.begin()


@given(
    launches,
    st.none() | st.integers(1, 3),
    st.integers(4, 9),
    st.lists(st.sampled_from(["buy", "refuse", "end", "look"]), max_size=100),
)
def test_caps_are_kept_and_nothing_waits_for_ever(
    wanted: list[Launch], most_running: int | None, most_machines: int, moves: list[str]
) -> None:
    cloud = Cloud(Bounds(None, most_running, {}, {"aws": most_machines}))
    for one in wanted:
        cloud.lane.add(one, one)
    cloud.begin()
    for move in [*moves, *["buy", "end", "look"] * (len(wanted) + 1)]:
        if move == "look":
            cloud.look()
        elif move == "end" and cloud.bought:
            cloud.bought.remove(min(cloud.bought, key=lambda one: one.key))
        elif move in ("buy", "refuse") and cloud.unanswered:
            cloud.answer(is_bought=move == "buy")
    assert sorted(cloud.begun) == sorted(one.key[0] for one in wanted)


def test_a_user_at_the_cap_holds_up_nobody_else() -> None:
    cloud = Cloud(Bounds(most_running_per_user=1))
    for one in (launch(1), launch(2), launch(3, "bob"), launch(4, begun=True)):
        cloud.lane.add(one, one)
    cloud.begin()
    assert sorted(cloud.begun) == [3, 4], "one that goes on takes the place that it has"
    assert "limits.most_running_per_user" in (cloud.caps.why_not("aws", launch(1)) or "")


def test_a_full_cloud_keeps_the_order() -> None:
    cloud = Cloud(Bounds(most_machines={"aws": 4}))
    for one in (launch(1, machines=2), launch(2, machines=3), launch(3, "bob", -1)):
        cloud.lane.add(one, one)
    cloud.begin()
    assert cloud.begun == [1], "one that needs less does not overtake one that would never get its turn otherwise"
    assert "2 of 4 machines (aws.most_machines)" in (cloud.caps.why_not("aws", launch(2, machines=3)) or "")


def test_nothing_begins_before_it_is_known_what_stands() -> None:
    caps = Caps(Bounds(most_running_per_user=1, most_machines={"aws": 4}))
    assert caps.why_cloud_is_full("aws", launch(1))
    assert caps.why_user_waits(launch(1))
    assert caps.why_not("aws", launch(1, machines=0)) is None, "a bucket is no machine"
