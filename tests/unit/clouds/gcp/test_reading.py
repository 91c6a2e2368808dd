"""Google's words, read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.controller.clouds.base import Bootstrap, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.faulting import Refused
from perdure.controller.clouds.gcp import history, launching
from perdure.controller.clouds.gcp.reading import STATES, epoch_s, place_of, rank_of, read
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.recovery.market import Market, Offer
from perdure.recovery.reasons import MEANINGS, Reason

TAGS = {"perdure-controller": "c", "perdure-job": "7", "perdure-task": "0", "perdure-generation": "2"}
ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"


def told(status: str = "RUNNING", **more: Any) -> Any:
    owner = SimpleNamespace(key="perdure-owner", value=json.dumps({**TAGS, "perdure-token": "T_1"}))
    return SimpleNamespace(
        **{
            "name": "perdure-t-3",
            "status": status,
            "zone": ZONE,
            "machine_type": f"{ZONE}/machineTypes/n1-highmem-8",
            "guest_accelerators": [],
            "labels": {**TAGS, "perdure-token": "digest"},
            "metadata": SimpleNamespace(items=[owner]),
            "creation_timestamp": "2026-01-02T03:04:05.678-08:00",
            "network_interfaces": [SimpleNamespace(network_i_p="10.0.0.9")],
            **more,
        }
    )


def request(**more: Any) -> LaunchRequest:
    kind, gpus = more.pop("kind", "n2-standard-2"), more.pop("accelerators", None)
    offer = Offer("gcp", "us-central1", "us-central1-a", kind, Market.SPOT, 0.1, 0.2, 2, 8, gpus)
    token = more.pop("token", "hf-0a1b2c-7-0-1")
    owner = Owner(more.pop("controller", "0a1b2c"), job_id=7, task=0, generation=1, token=token)
    return LaunchRequest(
        **{"owner": owner, "offer": offer, "num_nodes": 2, "name": "n", **more},
        bootstrap=Bootstrap("", "", {"agent": ""}),
    )


@pytest.mark.parametrize(("status", "state"), [*STATES.items(), ("A_NEW_STATE", InstanceState.ENDING)])
def test_states(status: str, state: InstanceState) -> None:
    instance = read(told(status))
    assert instance is not None
    assert (instance.state, instance.rank, instance.ip) == (state, 3, "10.0.0.9")
    assert (instance.id, instance.region) == ("us-central1-a/perdure-t-3", "us-central1")
    assert instance.owner == Owner("c", 7, 0, 2, "T_1"), "as it was written, and no digest"
    assert instance.launched_at == datetime(2026, 1, 2, 11, 4, 5, 678000, tzinfo=UTC).timestamp()


def test_whose_it_is_the_labels_tell_if_the_metadata_does_not() -> None:
    plain = SimpleNamespace(items=[])
    by_labels = read(told(metadata=plain))
    assert by_labels is not None
    assert by_labels.owner.token == "digest"
    assert read(told(metadata=plain, labels={"team": "web"})) is None
    broken = SimpleNamespace(items=[SimpleNamespace(key="perdure-owner", value="{")])
    assert read(told(metadata=broken)) is None


def test_a_type_is_named_with_what_is_attached() -> None:
    gpus = SimpleNamespace(accelerator_type=f"{ZONE}/acceleratorTypes/nvidia-tesla-v100", accelerator_count=1)
    one = read(told(guest_accelerators=[gpus]))
    assert one is not None
    assert one.instance_type == "n1-highmem-8+v100x1"
    of_its_own = read(told(machine_type=f"{ZONE}/machineTypes/a2-highgpu-1g", guest_accelerators=[gpus]))
    assert of_its_own is not None
    assert of_its_own.instance_type == "a2-highgpu-1g"


def test_an_id_is_of_one_place() -> None:
    assert place_of("us-central1-a/perdure-t-0", "us-central1") == ("us-central1-a", "perdure-t-0")
    for odd in ("us-central1-a/../x", "us-central1-a/", "us-east4-a/perdure-t-0", "x", 'us-central1-a/a"b'):
        assert place_of(odd, "us-central1") is None
    assert (rank_of("perdure-t-12"), rank_of("web")) == (12, 0)
    assert epoch_s("") is None


# ---- what became of it ----


def operation(kind: str, ended: str = "2026-01-02T03:05:00+00:00", *, failed: bool = False, **more: Any) -> Any:
    errors = [SimpleNamespace(code="X", message="")] if failed else []
    times = {"start_time": "2026-01-02T03:04:00+00:00", "insert_time": "", "end_time": ended}
    status = SimpleNamespace(name="DONE" if ended else "RUNNING")
    return SimpleNamespace(
        operation_type=kind, status=status, error=SimpleNamespace(errors=errors), **{**times, **more}
    )


@pytest.mark.parametrize(("kind", "reason"), history.ENDS.items())
def test_every_end_is_one_that_a_task_recovers_from(kind: str, reason: Reason) -> None:
    fate = history.fate([operation("insert"), operation(kind)])
    assert (fate.reason, fate.ended_at, fate.launched_at) == (
        reason,
        epoch_s("2026-01-02T03:05:00Z"),
        epoch_s("2026-01-02T03:04:00Z"),
    )
    assert MEANINGS[reason].recovers


def test_a_preemption_is_one_though_the_machine_was_deleted_too() -> None:
    both = [operation("compute.instances.preempted"), operation("delete", "2026-01-02T03:09:00+00:00")]
    for order in (both, both[::-1]):
        fate = history.fate(order)
        assert (fate.reason, fate.ended_at) == (Reason.PREEMPTED, epoch_s("2026-01-02T03:05:00Z"))


def test_what_is_not_over_has_no_end_and_what_failed_ended_nothing() -> None:
    fate = history.fate([operation("compute.instances.preempted", ended="")])
    assert (fate.reason, fate.ended_at) == (Reason.PREEMPTED, None)
    assert history.fate([operation("delete", failed=True)]) == history.Fate()
    assert history.fate([]) == history.Fate()


def test_a_tombstone_that_nobody_remembers_tells_what_its_id_tells() -> None:
    buried = history.tombstone("us-central1-a/perdure-t-3", history.Fate(1.0, 2.0, Reason.PREEMPTED), None)
    assert (buried.state, buried.rank, buried.region) == (InstanceState.GONE, 3, "us-central1")
    assert (buried.launched_at, buried.ended_at, buried.gone_reason) == (1.0, 2.0, Reason.PREEMPTED)


# ---- what is asked for ----


def test_names_follow_from_the_token_and_are_names() -> None:
    assert launching.names(request(), 0) == ["perdure-hf-0a1b2c-7-0-1-0", "perdure-hf-0a1b2c-7-0-1-1"]
    assert launching.names(request(), 2)[1] == "perdure-hf-0a1b2c-7-0-1-2-1"
    for odd in ("UPPER", "a_b", "-a", "a-", "", "x" * 41, "é"):
        (first, _), (again, _) = launching.names(request(token=odd), 0), launching.names(request(token=odd), 0)
        assert first == again
        assert len(first) < 63
        assert place_of(f"us-central1-a/{first}", "us-central1")


def test_a_token_has_an_id_of_its_own_for_every_go() -> None:
    ids = {launching.request_id(request(token=token), go) for token in ("t1", "t2") for go in (0, 1)}
    assert len(ids) == 4
    assert launching.request_id(request(), 0) == launching.request_id(request(), 0)


def test_labels_are_what_labels_may_be_and_ours_come_first() -> None:
    labels = launching.labels_of(request(labels={"team": "Vision", "perdure-job": "mine", "Odd Key": "x"}))
    assert labels["perdure-job"] == "7"
    assert "Odd Key" not in labels
    assert labels["team"] == launching.label("Vision") != "Vision"


@pytest.mark.parametrize("image", ["ami-1", "ubuntu", "projects/p/global/images/", "skypilot:gpu-ubuntu-2204"])
def test_an_image_that_is_none_is_refused(image: str) -> None:
    with pytest.raises(Refused, match="is none of Google's"):
        launching.bulk_insert(request(image_id=image), GcpSettings(), 0)


def test_images_and_disks() -> None:
    named = "projects/p/global/images/family/f"
    assert launching.image(request(image_id=named), GcpSettings(image="other")) == named
    assert launching.image(request(kind="g2-standard-4", accelerators=("L4", 1)), GcpSettings()) == launching.GPU_IMAGE
    for kind, expected in (("n2-standard-2", "pd-standard"), ("g2-standard-4", "pd-balanced")):
        (disk,) = launching.bulk_insert(request(kind=kind, disk_tier="low"), GcpSettings(), 0)["instance_properties"][
            "disks"
        ]
        assert disk["initialize_params"]["disk_type"] == expected
