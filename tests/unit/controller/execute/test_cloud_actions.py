"""The intent executor with a cloud that lists new machines late, and with clouds that are unavailable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from perdure.controller.clouds.base.protocol import VISIBLE_WITHIN_S, Bootstrap, Cloud, Instance, LaunchRequest, Owner
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.clouds.registry import BrokenCloud, UnavailableCloud
from perdure.controller.execute.call_types import IntentOutcome, RetryLater
from perdure.controller.execute.cloud_actions import CloudActions
from perdure.controller.execute.machine_ids import MachineIds
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store import codec
from perdure.controller.store.records.intents import Intent, IntentKind
from perdure.recovery import events
from perdure.recovery.reasons import Reason

KEY = (1, 0, 1)


class SlowCloud(FakeCloud):
    """Lists new machines late. Its caller is suspended for a while after each answer."""

    suspended_s = 0.0

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        described = super().describe(region, ids)
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(self.suspended_s)
        return described


class Scene:
    """A machine that was just launched."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cloud = SlowCloud(self.clock)
        self.cloud.faults.listing_delay_s = VISIBLE_WITHIN_S / 2
        self.offer = self.cloud.offers()[0]
        (machine,) = self.cloud.launch(
            LaunchRequest(Owner("c", *KEY, token="t"), self.offer, 1, Bootstrap("http://x", "s", {}), "n")
        )
        self.machines = MachineIds(((0, machine.id),), self.clock.now())
        keyring = Keyring(b"k" * 32, "user")
        clouds = {"fake": self.cloud}
        self.executor = CloudActions(clouds, keyring, None, self.clock, "", {}, lambda _job: ())  # type: ignore[arg-type]

    def gone_reason(self) -> Reason | None:
        described = self.executor.describe(KEY, self.offer, self.machines)
        assert isinstance(described, events.MachinesDescribed)
        return described.gone_reasons[0]

    def is_termination_confirmed(self) -> bool:
        request = {"controller": "c", "offer": codec.encode_offer(self.offer)}
        intent = Intent(1, *KEY, IntentKind.TERMINATE, "t", request, self.clock.now())
        result = self.executor.perform(intent, self.machines, 0)
        assert isinstance(result, IntentOutcome | RetryLater)
        return isinstance(result, IntentOutcome)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("suspended_s", [0.0, 2 * VISIBLE_WITHIN_S])
def test_describe__machine_that_is_not_listed_yet_may_exist(scene: Scene, suspended_s: float) -> None:
    scene.cloud.suspended_s = suspended_s
    assert scene.gone_reason() is None


@pytest.mark.parametrize("suspended_s", [0.0, 2 * VISIBLE_WITHIN_S])
def test_terminate__is_not_confirmed_while_a_new_machine_is_not_listed(scene: Scene, suspended_s: float) -> None:
    scene.cloud.suspended_s = suspended_s
    assert not scene.is_termination_confirmed()


def test_describe__machine_that_stays_unlisted_has_crashed(scene: Scene) -> None:
    scene.cloud.forget(scene.machines.ids[0])
    assert scene.gone_reason() is None
    scene.clock.advance(VISIBLE_WITHIN_S)
    assert scene.gone_reason() is Reason.MACHINE_CRASHED
    assert scene.is_termination_confirmed()


BROKEN = {"fake": BrokenCloud("fake", "its SDK is missing")}
UNINSTALLED: dict[str, Cloud] = {}
NOT_CONFIGURED = {"fake": UnavailableCloud("fake", "it is not configured")}


class UnavailableScene:
    """Intents for machines of a cloud that was available when they were recorded."""

    def __init__(self, clouds: Mapping[str, Cloud]) -> None:
        self.clock = ManualClock()
        self.offer = FakeCloud(self.clock).offers()[0]
        keyring = Keyring(b"k" * 32, "user")
        self.executor = CloudActions(clouds, keyring, None, self.clock, "", {}, lambda _job: ())  # type: ignore[arg-type]

    def perform(self, kind: IntentKind, tries: int = 0) -> IntentOutcome | RetryLater:
        """Perform an old intent of an attempt whose machines are unknown."""
        request = {"controller": "c", "offer": codec.encode_offer(self.offer), "num_nodes": 1, "name": "n"}
        intent = Intent(1, *KEY, kind, "t", request, self.clock.now() - 10 * VISIBLE_WITHIN_S)
        return self.executor.perform(intent, MachineIds(), tries)


@pytest.mark.parametrize(
    ("clouds", "why"), [(BROKEN, "its SDK is missing"), (UNINSTALLED, "install the package again")]
)
def test_terminate__is_retried_while_the_cloud_is_broken(clouds: Mapping[str, Cloud], why: str) -> None:
    for tries in (0, 1, 1000):
        result = UnavailableScene(clouds).perform(IntentKind.TERMINATE, tries)
        assert isinstance(result, RetryLater)
        assert why in (result.error or "")


@pytest.mark.parametrize(
    ("clouds", "why"), [(BROKEN, "its SDK is missing"), (UNINSTALLED, "install the package again")]
)
def test_launch__may_have_happened_if_the_cloud_is_broken(clouds: Mapping[str, Cloud], why: str) -> None:
    scene = UnavailableScene(clouds)
    first, last = scene.perform(IntentKind.LAUNCH), scene.perform(IntentKind.LAUNCH, 1000)
    assert isinstance(first, RetryLater)
    assert why in (first.error or "")
    assert isinstance(last, IntentOutcome)
    assert isinstance(last.event, events.LaunchRefused)
    assert last.event.may_exist


def test_terminate__cloud_that_is_not_configured_has_no_machines() -> None:
    result = UnavailableScene(NOT_CONFIGURED).perform(IntentKind.TERMINATE)
    assert isinstance(result, IntentOutcome)
    assert result.result == "gone"


def test_launch__is_refused_by_a_cloud_that_is_not_configured() -> None:
    result = UnavailableScene(NOT_CONFIGURED).perform(IntentKind.LAUNCH)
    assert isinstance(result, IntentOutcome)
    assert isinstance(result.event, events.LaunchRefused)
    assert not result.event.may_exist
