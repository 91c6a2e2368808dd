"""Instances and operations of Compute Engine, parsed; and the names and labels of a launch."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import Bootstrap, InstanceState, LaunchRequest, Owner
from perdure.controller.clouds.gcp.machines import launch_request, parse, tombstones
from perdure.controller.clouds.gcp.machines.parse import STATES, epoch_s, place_of, rank_of
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import MEANINGS, Reason

TAGS = {"perdure-controller": "c", "perdure-job": "7", "perdure-task": "0", "perdure-generation": "2"}
ZONE = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"


def described(status: str = "RUNNING", **more: Any) -> SimpleNamespace:
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
            "last_start_timestamp": "",
            "last_stop_timestamp": "",
            "network_interfaces": [SimpleNamespace(network_i_p="10.0.0.9")],
            **more,
        }
    )


def request(**more: Any) -> LaunchRequest:
    kind, gpus = more.pop("kind", "n2-standard-2"), more.pop("accelerators", None)
    offer = Offer("gcp", "us-central1", "us-central1-a", kind, Market.SPOT, 0.1, 0.2, 2, 8, gpus)
    token = more.pop("token", "pd-0a1b2c-7-0-1")
    owner = Owner(more.pop("controller", "0a1b2c"), job_id=7, task=0, generation=1, token=token)
    return LaunchRequest(
        **{"owner": owner, "offer": offer, "num_nodes": 2, "name": "n", **more},
        bootstrap=Bootstrap("", "", {"agent": ""}),
    )


@pytest.mark.parametrize(("status", "state"), [*STATES.items(), ("A_NEW_STATE", InstanceState.ENDING)])
def test_instance__maps_states(status: str, state: InstanceState) -> None:
    instance = parse.instance(described(status))
    assert instance is not None
    assert (instance.state, instance.rank, instance.ip) == (state, 3, "10.0.0.9")
    assert (instance.id, instance.region) == ("us-central1-a/perdure-t-3", "us-central1")
    assert instance.owner == Owner("c", 7, 0, 2, "T_1"), "the label is stored as written, not as a digest"
    assert instance.launched_at == datetime(2026, 1, 2, 11, 4, 5, 678000, tzinfo=UTC).timestamp()


def test_owner_of__falls_back_to_labels() -> None:
    plain = SimpleNamespace(items=[])
    by_labels = parse.instance(described(metadata=plain))
    assert by_labels is not None
    assert by_labels.owner.token == "digest"
    assert parse.instance(described(metadata=plain, labels={"team": "web"})) is None
    broken = SimpleNamespace(items=[SimpleNamespace(key="perdure-owner", value="{")])
    assert parse.instance(described(metadata=broken)) is None


def test_type_of__includes_attached_gpus() -> None:
    gpus = SimpleNamespace(accelerator_type=f"{ZONE}/acceleratorTypes/nvidia-tesla-v100", accelerator_count=1)
    one = parse.instance(described(guest_accelerators=[gpus]))
    assert one is not None
    assert one.instance_type == "n1-highmem-8+v100x1"
    of_its_own = parse.instance(described(machine_type=f"{ZONE}/machineTypes/a2-highgpu-1g", guest_accelerators=[gpus]))
    assert of_its_own is not None
    assert of_its_own.instance_type == "a2-highgpu-1g"


def test_place_of__accepts_ids_of_one_region() -> None:
    assert place_of("us-central1-a/perdure-t-0", "us-central1") == ("us-central1-a", "perdure-t-0")
    for odd in ("us-central1-a/../x", "us-central1-a/", "us-east4-a/perdure-t-0", "x", 'us-central1-a/a"b'):
        assert place_of(odd, "us-central1") is None
    assert (rank_of("perdure-t-12"), rank_of("web")) == (12, 0)
    assert epoch_s("") is None


# ---- tombstones ----


def operation(
    kind: str, ended: str = "2026-01-02T03:05:00+00:00", *, failed: bool = False, **more: Any
) -> SimpleNamespace:
    errors = [SimpleNamespace(code="X", message="")] if failed else []
    times = {"start_time": "2026-01-02T03:04:00+00:00", "insert_time": "", "end_time": ended}
    status = SimpleNamespace(name="DONE" if ended else "RUNNING")
    return SimpleNamespace(
        operation_type=kind, status=status, error=SimpleNamespace(errors=errors), **{**times, **more}
    )


@pytest.mark.parametrize(("kind", "reason"), tombstones.ENDS.items())
def test_lifespan__has_a_recoverable_reason_for_every_end(kind: str, reason: Reason) -> None:
    fate = tombstones.lifespan([operation("insert"), operation(kind)])
    assert (fate.reason, fate.ended_at, fate.launched_at) == (
        reason,
        epoch_s("2026-01-02T03:05:00Z"),
        epoch_s("2026-01-02T03:04:00Z"),
    )
    assert MEANINGS[reason].recovers


def test_lifespan__prefers_a_preemption_over_the_deletion() -> None:
    both = [operation("compute.instances.preempted"), operation("delete", "2026-01-02T03:09:00+00:00")]
    for order in (both, both[::-1]):
        fate = tombstones.lifespan(order)
        assert (fate.reason, fate.ended_at) == (Reason.PREEMPTED, epoch_s("2026-01-02T03:05:00Z"))


def test_lifespan__ignores_unfinished_and_failed_operations() -> None:
    fate = tombstones.lifespan([operation("compute.instances.preempted", ended="")])
    assert (fate.reason, fate.ended_at) == (Reason.PREEMPTED, None)
    assert tombstones.lifespan([operation("delete", failed=True)]) == tombstones.Lifespan()
    assert tombstones.lifespan([]) == tombstones.Lifespan()


def test_tombstone__of_an_unknown_machine_has_the_facts_of_its_id() -> None:
    buried = tombstones.tombstone("us-central1-a/perdure-t-3", tombstones.Lifespan(1.0, 2.0, Reason.PREEMPTED), None)
    assert (buried.state, buried.rank, buried.region) == (InstanceState.GONE, 3, "us-central1")
    assert (buried.launched_at, buried.ended_at, buried.gone_reason) == (1.0, 2.0, Reason.PREEMPTED)


# ---- launch requests ----


def test_names__follow_from_the_token_and_are_valid() -> None:
    assert launch_request.names(request(), 0) == ["perdure-pd-0a1b2c-7-0-1-0", "perdure-pd-0a1b2c-7-0-1-1"]
    assert launch_request.names(request(), 2)[1] == "perdure-pd-0a1b2c-7-0-1-2-1"
    for odd in ("UPPER", "a_b", "-a", "a-", "", "x" * 41, "é"):
        (first, _), (again, _) = (
            launch_request.names(request(token=odd), 0),
            launch_request.names(request(token=odd), 0),
        )
        assert first == again
        assert len(first) < 63
        assert place_of(f"us-central1-a/{first}", "us-central1")


def test_request_id__differs_by_token_and_attempt() -> None:
    ids = {launch_request.request_id(request(token=token), go) for token in ("t1", "t2") for go in (0, 1)}
    assert len(ids) == 4
    assert launch_request.request_id(request(), 0) == launch_request.request_id(request(), 0)


def test_labels_of__are_valid_and_prefer_the_owners() -> None:
    labels = launch_request.labels_of(request(labels={"team": "Vision", "perdure-job": "mine", "Odd Key": "x"}))
    assert labels["perdure-job"] == "7"
    assert "Odd Key" not in labels
    assert labels["team"] == launch_request.label("Vision") != "Vision"


@pytest.mark.parametrize("image", ["ami-1", "ubuntu", "projects/p/global/images/", "skypilot:gpu-ubuntu-2204"])
def test_image__rejects_invalid_names(image: str) -> None:
    with pytest.raises(CloudRejected, match="is not an image of Google Cloud"):
        launch_request.bulk_insert(request(image_id=image), GcpSettings(), 0)


def test_properties__have_image_and_disk() -> None:
    named = "projects/p/global/images/family/f"
    assert launch_request.image(request(image_id=named), GcpSettings(image="other")) == named
    assert (
        launch_request.image(request(kind="g2-standard-4", accelerators=("L4", 1)), GcpSettings())
        == launch_request.GPU_IMAGE
    )
    for kind, expected in (("n2-standard-2", "pd-standard"), ("g2-standard-4", "pd-balanced")):
        (disk,) = launch_request.bulk_insert(request(kind=kind, disk_tier="low"), GcpSettings(), 0)[
            "instance_properties"
        ]["disks"]
        assert disk["initialize_params"]["disk_type"] == expected
