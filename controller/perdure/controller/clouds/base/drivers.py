"""Which GPUs the default image of each cloud has a driver for. A machine whose GPUs do not work is not offered.

The images of all three clouds carry NVIDIA's open kernel modules, which support Turing and newer GPUs. Sources: EC2's
release notes of the Deep Learning Base OSS AMI, Google's accelerator images, Azure's ubuntu-hpc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from perdure.recovery.market.view import Offer

NEEDS_PROPRIETARY_MODULES = frozenset({"K80", "M60", "P4", "P40", "P100", "V100", "V100-32GB"})
"""GPUs older than Turing: the open kernel modules do not drive them."""

DRIVERS: Mapping[str, frozenset[str]] = {
    "aws": frozenset({"T4", "A10G", "L4", "L40S", "A100", "A100-80GB", "H100", "H200", "B200"}),
    "gcp": frozenset({"T4", "L4", "A100", "A100-80GB", "H100", "H100-MEGA", "H200", "B200"}),
    # An A10 is sold in parts, which need NVIDIA's GRID driver.
    "azure": frozenset({"T4", "A100", "A100-80GB", "H100", "H200"}),
}
"""Cloud → the GPUs that its default image has a driver for."""


class DriverFilter:
    """Selects the offers whose GPUs work.

    `has_own_image`: region → whether the user has configured the image there. `zones`, `regions`: the only ones to
    use, because the user has named their subnets; empty: all. Returns the same object for the same one.
    """

    def __init__(
        self,
        cloud: str,
        has_own_image: Callable[[str], bool],
        zones: Collection[str] = (),
        regions: Collection[str] = (),
    ) -> None:
        self._drivers = DRIVERS[cloud]
        self._has_own_image = has_own_image
        self._zones = zones
        self._regions = regions
        self._last: tuple[Sequence[Offer], Sequence[Offer]] = ((), ())

    def select(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        before, selected = self._last
        if offers is not before:
            selected = tuple(offer for offer in offers if self._works(offer))
            self._last = offers, selected
        return selected

    def _works(self, offer: Offer) -> bool:
        if (self._zones and offer.zone not in self._zones) or (self._regions and offer.region not in self._regions):
            return False
        return offer.accelerators is None or offer.accelerators[0] in self._drivers or self._has_own_image(offer.region)
