"""Lists of a cloud's machines of which a part is missing, because some regions do not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.controller.clouds.base.protocol import Cloud, Instance


class PartialListing(Exception):
    """Raised by `Cloud.list_owned` if some regions do not answer and others do.

    `instances`: of the regions that answer. `failures`: region → its error. Nothing is known of its machines.
    """

    def __init__(self, instances: Sequence[Instance], failures: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(f"{region} cannot be listed: {error}" for region, error in failures.items()))
        self.instances = instances
        self.failures = failures


def combine(listed: Mapping[str, Sequence[Instance] | Exception]) -> list[Instance]:
    """The machines of all regions, by what each region has answered.

    Raises PartialListing if some regions have failed, and the first error if all have.
    """
    failures = {region: answer for region, answer in listed.items() if isinstance(answer, Exception)}
    if failures and len(failures) == len(listed):
        raise next(iter(failures.values()))
    instances = [one for answer in listed.values() if not isinstance(answer, Exception) for one in answer]
    if failures:
        raise PartialListing(instances, failures)
    return instances


def list_known(cloud: Cloud, controller: str) -> tuple[Sequence[Instance], Mapping[str, Exception]]:
    """`Cloud.list_owned` of the regions that answer, and the errors of the others, by region.

    Raises what `list_owned` raises if no region answers.
    """
    try:
        return cloud.list_owned(controller), {}
    except PartialListing as partial:
        return partial.instances, partial.failures
