"""What the machines of an attempt are asked for beside their offer: options of the launch, and the task's container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.controller.clouds import registry
from perdure.recovery.market.fit import fitted_requirement
from perdure.recovery.market.offers import Offer
from perdure.recovery.market.requirements import MachineRequirement

CONTAINER_IMAGE = "docker:"
REGISTRY_VARIABLES = ("SKYPILOT_DOCKER_SERVER", "SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD")
"""The variables and secrets of a task that hold the credentials of its container's registry."""


def is_container(image_id: str | None) -> bool:
    """Whether a task's `image_id` is a container's image rather than a machine's."""
    return image_id is not None and image_id.lower().startswith(CONTAINER_IMAGE)


def machine_options(
    spec: Mapping[str, Any], requirements: Sequence[MachineRequirement], offer: Offer
) -> dict[str, Any]:
    """The fields of a launch request that the alternative of `offer` asks for (`submit.compiler`)."""
    if "machines" not in spec:  # a job of version 0.1.0: the same for all alternatives
        return dict(spec.get("machine", {}))
    index = fitted_requirement(requirements, offer)
    return {} if index is None else dict(spec["machines"][index])


def boot_image(image_id: str | None, cloud: str) -> str | None:
    """The image that `cloud` boots: the task's own, unless the node runs it as a container on the cloud's default."""
    return None if is_container(image_id) and not registry.runs_containers(cloud) else image_id


def container(
    spec: Mapping[str, Any], requirements: Sequence[MachineRequirement], offer: Offer, variables: Mapping[str, str]
) -> dict[str, Any] | None:
    """The container that the nodes of an attempt run, as in the node spec; None if they run none.

    `variables`: the task's envs and secrets.
    """
    image = machine_options(spec, requirements, offer).get("image_id")
    if image is None or not is_container(image) or registry.runs_containers(offer.cloud):
        return None
    server, username, password = (variables.get(name) for name in REGISTRY_VARIABLES)
    has_registry = server and username and password
    credentials = {"server": server, "username": username, "password": password} if has_registry else None
    return {
        "image": image[len(CONTAINER_IMAGE) :],
        "run_options": spec.get("run_options", []),
        "registry": credentials,
    }
