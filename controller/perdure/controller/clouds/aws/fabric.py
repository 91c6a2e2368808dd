"""Elastic Fabric Adapters: which network cards of an instance type take one, and the interfaces to ask for.

docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


class Fabric:
    """Shared by threads. What a type has is asked once, of any region."""

    def __init__(self, ec2: Callable[[str], EC2Client]) -> None:
        self._ec2 = ec2
        self._lock = threading.Lock()
        self._cards: dict[str, tuple[int, ...]] = {}

    def cards(self, region: str, instance_type: str, subnet: str | None) -> tuple[int, ...]:
        """The cards that are to carry an adapter: none where the type takes none.

        EC2 gives a public address to machines with one interface alone. Without one a machine reaches its controller
        through the subnet's own gateway, or not at all. So there is more than one where `subnet` gives none anyway.
        """
        with self._lock:
            cards = self._cards.get(instance_type)
        if cards is None:
            (told,) = self._ec2(region).describe_instance_types(InstanceTypes=[instance_type])["InstanceTypes"]  # type: ignore[list-item]
            cards = adapters(told.get("NetworkInfo", {}))
            with self._lock:
                self._cards[instance_type] = cards
        if cards in ((), (0,)) or (subnet is not None and not self._is_public(region, subnet)):
            return cards
        return cards[:1] if cards[0] == 0 else ()

    def _is_public(self, region: str, subnet: str) -> bool:
        (told,) = self._ec2(region).describe_subnets(SubnetIds=[subnet])["Subnets"]
        return bool(told["MapPublicIpOnLaunch"])


def adapters(network: Mapping[str, Any]) -> tuple[int, ...]:
    """The indexes of the cards that take an adapter, of a type's NetworkInfo."""
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    cards = network.get("NetworkCards", ())
    return tuple(sorted(card["NetworkCardIndex"] for card in cards if "efa" in card.get("InterfaceTypes", ()))[:most])


def interfaces(cards: Sequence[int], *, subnet: str | None, security_group: str | None) -> list[dict[str, Any]]:
    """RunInstances' NetworkInterfaces with an adapter on each of the cards, of which there is one at least.

    One adapter carries IP as well. Of several none does: an interface beside them does, so that a machine takes one
    address of its subnet, and not 32.
    """
    if list(cards) == [0]:
        places = [(0, 0, "efa")]
    else:
        places = [(0, 0, "interface"), *((card, 1 if card == 0 else 0, "efa-only") for card in cards)]
    where: dict[str, Any] = {} if subnet is None else {"SubnetId": subnet}
    if security_group is not None:
        where["Groups"] = [security_group]
    return [
        {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind, "DeleteOnTermination": True, **where}
        for card, device, kind in places
    ]
