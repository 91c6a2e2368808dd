"""What is made of a cloud's answer that is old by the time it is read: the controller stood still meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.controller.acting import Actor, Later, Outcome
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.base import VISIBLE_WITHIN_S, Bootstrap, Instance, LaunchRequest, Owner
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.keyring import Keyring
from perdure.controller.machines import Machines
from perdure.controller.store import codec
from perdure.controller.store.intents import Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.reasons import Reason

KEY = (1, 0, 1)


class SlowCloud(FakeCloud):
    """Shows new machines late; so long after it has answered does its caller go on."""

    stands_still_s = 0.0

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        found = super().describe(region, ids)
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(self.stands_still_s)
        return found


class Scene:
    """A machine that was bought just now."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cloud = SlowCloud(self.clock)
        self.cloud.faults.listing_delay_s = VISIBLE_WITHIN_S / 2
        self.offer = self.cloud.offers()[0]
        (machine,) = self.cloud.launch(
            LaunchRequest(Owner("c", *KEY, token="t"), self.offer, 1, Bootstrap("http://x", "s", {}), "n")
        )
        self.machines = Machines(((0, machine.id),), self.clock.now())
        keyring = Keyring(b"k" * 32, "user")
        self.actor = Actor({"fake": self.cloud}, keyring, None, self.clock, "", {}, lambda _job: ())  # type: ignore[arg-type]

    def fate(self) -> Reason | None:
        seen = self.actor.look(KEY, self.offer, self.machines)
        assert isinstance(seen, events.MachinesSeen)
        return seen.fates[0]

    def is_gone(self) -> bool:
        """Whether its termination is taken for confirmed."""
        request = {"controller": "c", "offer": codec.offer_json(self.offer)}
        intent = Intent(1, *KEY, IntentKind.TERMINATE, "t", request, self.clock.now())
        answer = self.actor.perform(intent, self.machines, 0)
        assert isinstance(answer, Outcome | Later)
        return isinstance(answer, Outcome)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("stands_still_s", [0.0, 2 * VISIBLE_WITHIN_S])
def test_a_new_machine_that_was_not_shown_when_the_cloud_answered_may_live(scene: Scene, stands_still_s: float) -> None:
    scene.cloud.stands_still_s = stands_still_s
    assert scene.fate() is None


@pytest.mark.parametrize("stands_still_s", [0.0, 2 * VISIBLE_WITHIN_S])
def test_the_end_of_a_new_machine_that_was_not_shown_is_not_confirmed(scene: Scene, stands_still_s: float) -> None:
    scene.cloud.stands_still_s = stands_still_s
    assert not scene.is_gone()


def test_one_that_should_be_shown_by_now_and_is_not_went_away(scene: Scene) -> None:
    scene.cloud.forget(scene.machines.ids[0])
    assert scene.fate() is None
    scene.clock.advance(VISIBLE_WITHIN_S)
    assert scene.fate() is Reason.MACHINE_CRASHED
    assert scene.is_gone()
