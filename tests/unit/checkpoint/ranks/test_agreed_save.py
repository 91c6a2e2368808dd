"""All processes save at the same steps and stop at the same step, whatever each of them knows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.checkpoint import preemption
from perdure.checkpoint.durability import status
from perdure.checkpoint.durability.pending_upload import PendingUpload
from perdure.checkpoint.ranks.agreed_save import AgreedSave
from perdure.checkpoint.ranks.exchange_pace import ExchangePace
from perdure.checkpoint.ranks.group import SingleProcess
from perdure.checkpoint.save.final_save import FinalSave
from perdure.checkpoint.save.interval import SaveInterval


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Upload(PendingUpload):
    """Pending as long as the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = self.seen = False

    @property
    def was_pending(self) -> bool:
        return self.seen

    def is_pending(self) -> bool:
        self.seen = self.pending
        return self.pending


class Ranks:
    """Two ranks, each in a thread of its own; their clock stands still unless a test moves it."""

    def __init__(self, **interval: Any) -> None:
        self.clock = Clock()
        self.uploads = [Upload(), Upload()]
        self.final_saves = [FinalSave(), FinalSave()]
        self._values: list[Any] = [None, None]
        self._barrier = threading.Barrier(2)
        self.intervals = [SaveInterval(clock=self.clock, **interval) for _ in range(2)]
        self.ranks = [
            AgreedSave("checkpoint", _Group(self, rank), *one)
            for rank, one in enumerate(zip(self.intervals, self.final_saves, self.uploads, strict=True))
        ]
        for one in self.ranks:
            one._pace = ExchangePace(self.clock)

    def all_gather(self, rank: int, mine: Any) -> list[Any]:
        self._values[rank] = mine
        self._barrier.wait(10)
        values = list(self._values)
        self._barrier.wait(10)
        return values

    def together(self, call: Callable[[AgreedSave], bool]) -> list[bool]:
        """What `call` returns on each rank."""
        results: list[bool] = [False, False]

        def run(rank: int) -> None:
            results[rank] = call(self.ranks[rank])

        threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def due(self, step: int) -> bool:
        one, other = self.together(lambda rank: rank.is_due(step))
        assert one == other
        return one


class _Group:
    world_size = 2

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self.rank = ranks, rank

    def all_gather(self, topic: str, mine: Any) -> list[Any]:
        return self._ranks.all_gather(self.rank, mine)


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of threads that have received a notice; "all": every one."""
    names: set[str] = set()

    def is_noticed() -> bool:
        return "all" in names

    monkeypatch.setattr(preemption, "is_noticed", is_noticed)
    monkeypatch.setattr(preemption, "preempted", is_noticed)
    return names


def test_agreed_save__waits_while_one_rank_uploads() -> None:
    ranks = Ranks()
    for one in ranks.intervals:
        one.record_save(0.5)
    ranks.clock.now = 1000.0
    ranks.uploads[1].pending = True
    assert not ranks.due(1)
    ranks.clock.now += 5
    ranks.uploads[1].pending = False
    assert ranks.due(2)
    assert ranks.intervals[1]._upload_s == 1005


def test_agreed_save__waits_for_no_upload_without_end_nor_at_the_last_step() -> None:
    ranks = Ranks(total_steps=9)
    for one in ranks.intervals:
        one.record_save(0.5)
    ranks.clock.now = 1000.0
    ranks.uploads[0].pending = True
    assert not ranks.due(1)
    assert ranks.due(9)
    for _ in range(3):  # to the next exchange
        ranks.clock.now += 3000.0
        is_due = ranks.due(2)
    assert is_due


def test_agreed_save__one_process_waits_for_its_upload() -> None:
    clock, upload = Clock(), Upload()
    interval = SaveInterval(clock=clock)
    interval.record_save(0.5)
    one = AgreedSave("checkpoint", SingleProcess(), interval, FinalSave(), upload)
    assert not one.is_due(1)
    clock.now, upload.pending = 1000.0, True
    assert not one.is_due(2)
    upload.pending = False
    assert one.is_due(3)


@pytest.mark.parametrize("every", [1, 1000])
def test_agreed_save__all_stop_at_the_step_at_which_one_has_told_the_others(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the interval: with every step saved, there is still an exchange."""
    ranks = Ranks(every_steps=every)
    noticed: set[str] = set()

    def is_noticed() -> bool:
        return threading.current_thread().name in noticed

    monkeypatch.setattr(preemption, "is_noticed", is_noticed)
    monkeypatch.setattr(preemption, "preempted", is_noticed)

    def step(rank: AgreedSave) -> bool:
        if rank is ranks.ranks[1] and ranks.clock.now >= 3:
            noticed.add("rank 1")
        rank.is_due(int(ranks.clock.now) + 1)
        return rank.preempted()

    stops = []
    for second in range(8):
        ranks.clock.now = float(second)
        stops.append(ranks.together(step))
        if stops[-1] == [True, True]:
            break
    assert stops[:3] == [[False, False]] * 3
    assert all(one == other for one, other in stops)
    assert stops[-1] == [True, True]
    assert len(stops) <= 5


def test_agreed_save__preempted_tells_what_a_process_knows_if_none_was_agreed_on(noticed: set[str]) -> None:
    ranks = Ranks()
    noticed.add("all")
    assert ranks.ranks[0].preempted()  # `is_due` was never called
    noticed.clear()
    ranks.due(1)
    noticed.add("all")
    assert [ranks.ranks[0].preempted() for _ in range(11)] == [False] * 10 + [True]


def test_pending_upload__until_the_bucket_has_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, polls = Clock(), []
    answers: dict[str, bool | None] = {"x": False}

    def is_durable(paths: list[str]) -> bool | None:
        polls.append(paths)
        return answers["x"]

    monkeypatch.setattr(status, "is_durable", is_durable)
    upload = PendingUpload(clock)
    assert not upload.is_pending()
    upload.begin(["a"])
    assert upload.is_pending()
    assert upload.is_pending()
    assert polls == [["a"]]  # once a second
    clock.now, answers["x"] = 1.0, True
    assert not upload.is_pending()
    upload.begin(["b"])
    answers["x"] = None  # it is not known: nothing waits for it
    assert not upload.is_pending()
