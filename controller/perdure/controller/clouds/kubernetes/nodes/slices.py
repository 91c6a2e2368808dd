"""The part of a node that one pod gets, and its name: SkyPilot's virtual types, such as `4CPU--16GB--H100:1`.

A name says everything that a pod requests, so a launch needs nothing but the offer. Sizes without accelerators are
powers of two; with accelerators a slice gets its share of the node's CPUs and memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.controller.clouds.kubernetes.nodes.accelerators import NodeAccelerator

# What the system's own pods need on each node, at least: DaemonSets are not visible without rights to all namespaces.
RESERVED_VCPUS = 0.25
RESERVED_GIB = 0.5
GIB_PER_VCPU = (2, 4, 8)
_NAME = re.compile(r"(?P<cpus>\d+(?:\.\d+)?)CPU--(?P<gib>\d+(?:\.\d+)?)GB(?:--(?P<accelerator>[^:]+):(?P<count>\d+))?")


@dataclass(frozen=True)
class PodSize:
    """What a pod requests."""

    vcpus: float
    memory_gib: float
    accelerators: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        text = f"{self.vcpus:g}CPU--{self.memory_gib:g}GB"
        return f"{text}--{self.accelerators[0]}:{self.accelerators[1]}" if self.accelerators else text

    @classmethod
    def parse(cls, name: str) -> PodSize | None:
        """The size with that name; None if it is no such name."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        accelerators = (match["accelerator"], int(match["count"])) if match["accelerator"] else None
        return cls(float(match["cpus"]), float(match["gib"]), accelerators)


def sizes_of(vcpus: float, memory_gib: float, accelerators: tuple[NodeAccelerator, ...]) -> Iterator[PodSize]:
    """The slices of a node with these allocatable amounts, each once."""
    vcpus, memory_gib = vcpus - RESERVED_VCPUS, memory_gib - RESERVED_GIB
    if not accelerators:
        yield from _plain(vcpus, memory_gib)
        return
    for one in accelerators:
        counts = {count for count in (1, 2, 4, 8, 16) if count <= one.count} | {one.count}
        for count in sorted(counts):
            share = count / one.count
            cpus, gib = math.floor(vcpus * share), math.floor(memory_gib * share)
            if cpus >= 1 and gib >= 1:
                yield PodSize(cpus, gib, (one.name, count))


def _plain(vcpus: float, memory_gib: float) -> Iterator[PodSize]:
    cpus = 1
    while cpus <= vcpus:
        for ratio in GIB_PER_VCPU:
            if cpus * ratio <= memory_gib:
                yield PodSize(cpus, cpus * ratio)
        cpus *= 2
    if cpus // 2 < math.floor(vcpus) and memory_gib >= 1:
        yield PodSize(math.floor(vcpus), math.floor(memory_gib))  # the whole node
