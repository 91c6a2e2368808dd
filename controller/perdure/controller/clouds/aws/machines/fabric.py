"""Elastic Fabric Adapters: the network cards of an instance type that support one, and the interfaces to request.

docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


class Fabric:
    """Thread-safe. Each instance type is described once, in any region."""

    def __init__(self, ec2: Callable[[str], EC2Client]) -> None:
        self._ec2 = ec2
        self._lock = threading.Lock()
        self._cards: dict[str, tuple[int, ...]] = {}

    def cards(self, region: str, instance_type: str, subnet: str | None) -> tuple[int, ...]:
        """The indexes of the cards to give an adapter; empty if the type supports none.

        EC2 assigns a public address only to machines with a single interface. Other machines reach the controller
        through the subnet's gateway, or not at all. So a machine gets several adapters only in a subnet that assigns no
        public addresses.
        """
        with self._lock:
            cards = self._cards.get(instance_type)
        if cards is None:
            (info,) = self._ec2(region).describe_instance_types(InstanceTypes=[instance_type])["InstanceTypes"]  # type: ignore[list-item]
            cards = adapters(info.get("NetworkInfo", {}))
            with self._lock:
                self._cards[instance_type] = cards
        if cards in ((), (0,)) or (subnet is not None and not self._is_public(region, subnet)):
            return cards
        return cards[:1] if cards[0] == 0 else ()

    def _is_public(self, region: str, subnet: str) -> bool:
        (description,) = self._ec2(region).describe_subnets(SubnetIds=[subnet])["Subnets"]
        return bool(description["MapPublicIpOnLaunch"])


def adapters(network: Mapping[str, Any]) -> tuple[int, ...]:
    """The indexes of the cards that support an adapter, from a type's NetworkInfo."""
    max_adapters = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    cards = network.get("NetworkCards", ())
    return tuple(
        sorted(card["NetworkCardIndex"] for card in cards if "efa" in card.get("InterfaceTypes", ()))[:max_adapters]
    )


def interfaces(
    cards: Sequence[int], *, subnet: str | None, security_groups: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """RunInstances' NetworkInterfaces, with an adapter on each of the cards (at least one).

    A single adapter also carries IP. With several, a separate interface does, so that the machine takes one address of
    its subnet instead of 32.
    """
    if list(cards) == [0]:
        places = [(0, 0, "efa")]
    else:
        places = [(0, 0, "interface"), *((card, 1 if card == 0 else 0, "efa-only") for card in cards)]
    where: dict[str, Any] = {} if subnet is None else {"SubnetId": subnet}
    if security_groups:
        where["Groups"] = list(security_groups)
    return [
        {"NetworkCardIndex": card, "DeviceIndex": device, "InterfaceType": kind, "DeleteOnTermination": True, **where}
        for card, device, kind in places
    ]
