"""Machines and buckets of an account that a test may spend on, and how to end them, for each cloud.

Everything goes through the cloud's own SDK rather than the code under test; only sign-in and the price of a type are
that code's. `sections`: sections of config.yaml, as the controller has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import boto3

from perdure.controller.buckets.azure import AzureStore
from perdure.controller.buckets.gcs import PUBLIC_URL, GcsStore
from perdure.controller.buckets.s3 import S3Store
from perdure.controller.clouds.aws.pricing import catalog as aws_catalog
from perdure.controller.clouds.aws.sdk.connections import AwsConnections
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.azure.machines.networks import Networks
from perdure.controller.clouds.azure.pricing import catalog as azure_catalog
from perdure.controller.clouds.azure.sdk.connections import AzureConnections, find_credential
from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.gcp.machines import parse
from perdure.controller.clouds.gcp.pricing import catalog as gcp_catalog
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.controller.runtime.clock import SystemClock
from support.worlds.jobs_on_clouds import keys_in

LABEL = "test-of-perdure"  # labels that begin with "perdure" are reserved
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Machine:
    """One that is billed still. `launched_at`: epoch seconds, None before the cloud says it. `handle`: for `end`."""

    id: str
    instance_type: str
    launched_at: float | None
    handle: Any = None


class Provider(Protocol):
    def unusable(self) -> str | None:
        """Why the credentials are unusable and what to do. None if they may work; no call is made."""
        ...

    def machines(self, run: str) -> Iterator[Machine]:
        """The machines whose label LABEL is `run`."""
        ...

    def end(self, machine: Machine) -> None:
        """Request the end of a machine. It is a success if the machine is gone."""
        ...

    def keys(self, bucket: str) -> list[str]:
        """The keys of the bucket; none if the bucket does not exist."""
        ...

    def remove(self, bucket: str) -> None:
        """Remove the bucket with its content. It is a success if the bucket is gone."""
        ...


class Aws:
    def __init__(self, sections: Sections) -> None:
        settings = AwsSettings.from_mapping(sections["aws"])
        (self._region,) = settings.regions
        self._connections = AwsConnections(settings, SystemClock())
        self._endpoint = sections["s3"].get("endpoint")
        self._s3 = boto3.client("s3", region_name=self._region, endpoint_url=self._endpoint)

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def machines(self, run: str) -> Iterator[Machine]:
        pages = self._connections.ec2(self._region).get_paginator("describe_instances")
        for page in pages.paginate(Filters=[{"Name": f"tag:{LABEL}", "Values": [run]}]):
            for one in (one for reservation in page["Reservations"] for one in reservation["Instances"]):
                if one["State"]["Name"] != "terminated":
                    yield Machine(one["InstanceId"], one["InstanceType"], one["LaunchTime"].timestamp())

    def end(self, machine: Machine) -> None:
        self._connections.ec2(self._region).terminate_instances(InstanceIds=[machine.id])

    def keys(self, bucket: str) -> list[str]:
        return keys_in(self._s3, bucket)

    def remove(self, bucket: str) -> None:
        S3Store(endpoint=self._endpoint, region=self._region).remove(bucket)


class Gcp:
    def __init__(self, sections: Sections) -> None:
        settings = GcpSettings.from_mapping(sections["gcp"])
        self._connections = GcpConnections(settings, SystemClock())
        buckets = sections["gcs"]
        key_file, endpoint = buckets.get("credentials") or settings.credentials, buckets.get("endpoint")
        self._store = GcsStore(project=settings.project, key_file=key_file, endpoint=endpoint)
        self._storage = GcpConnections(GcpSettings(credentials=key_file, endpoint_url=endpoint), SystemClock())

    def unusable(self) -> str | None:
        return self._connections.unusable()

    def machines(self, run: str) -> Iterator[Machine]:
        """The list has no deleted machines. It has stopped ones, since their disks are billed."""
        request = {"project": self._connections.project, "filter": f'labels.{LABEL} = "{run}"'}
        for _, reported in self._connections.instances.aggregated_list(request=request, **self._connections.once):
            for one in reported.instances:
                place = {"zone": parse.last_segment(one.zone), "instance": one.name}
                yield Machine(one.name, parse.type_of(one), parse.epoch_s(one.creation_timestamp), place)

    def end(self, machine: Machine) -> None:
        from google.api_core.exceptions import NotFound

        request = {"project": self._connections.project, **machine.handle}
        with suppress(NotFound):
            self._connections.instances.delete_unary(request=request, **self._connections.once)

    def keys(self, bucket: str) -> list[str]:
        from google.api_core.exceptions import NotFound

        try:
            reported = self._storage.call("GET", PUBLIC_URL, f"/storage/v1/b/{bucket}/o")
        except NotFound:
            return []
        return [one["name"] for one in reported.get("items", ())]

    def remove(self, bucket: str) -> None:
        self._store.remove(bucket)


class Azure:
    def __init__(self, sections: Sections) -> None:
        settings = AzureSettings.from_mapping(sections["azure"])
        (region,) = settings.regions
        self._connections = AzureConnections(settings, SystemClock())
        self._group = Networks(settings, self._connections).group(region)
        self._account = os.environ.get("AZURE_STORAGE_ACCOUNT", "")
        self._key = os.environ.get("AZURE_STORAGE_KEY")
        self._endpoint = sections["azure_blob"].get("endpoint")

    def unusable(self) -> str | None:
        if not self._account:
            return "AZURE_STORAGE_ACCOUNT is not set: name the account that a container is to be made in"
        return self._connections.unusable()

    def machines(self, run: str) -> Iterator[Machine]:
        from azure.core.exceptions import ResourceNotFoundError

        with suppress(ResourceNotFoundError):  # there is no group yet
            reported: Iterator[Any] = self._connections.client().virtual_machines.list(self._group)
            for one in reported:
                if (one.tags or {}).get(LABEL) == run:
                    size, made = one.properties.hardware_profile.vm_size, one.properties.time_created
                    since = made.timestamp() if made else None
                    yield Machine(str(one.name), str(getattr(size, "value", size)), since)

    def end(self, machine: Machine) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        with suppress(ResourceNotFoundError):
            self._connections.client().virtual_machines.begin_delete(
                self._group, machine.id, force_deletion=True, polling=False
            )

    def keys(self, bucket: str) -> list[str]:
        from azure.core.exceptions import ResourceNotFoundError
        from azure.storage.blob import ContainerClient

        url = self._endpoint or f"https://{self._account}.blob.core.windows.net"
        key = {"account_name": self._account, "account_key": self._key} if self._key else None
        client = ContainerClient(url, bucket, key or find_credential(), retry_total=0)
        try:
            return list(client.list_blob_names())
        except ResourceNotFoundError:
            return []

    def remove(self, bucket: str) -> None:
        store = AzureStore(SystemClock(), account=self._account, endpoint=self._endpoint, account_key=self._key)
        store.remove(f"{self._account}/{bucket}")


@dataclass(frozen=True)
class Kind:
    """What the test uses of a cloud, and its default region. `more`: additions to the cloud's section of config.yaml;
    `sections`: the sections of its buckets. `timeout_s`: the limit of a wait for machines."""

    open: Callable[[Sections], Provider]
    region: str
    instance_type: str
    store: str
    catalog: Any
    more: dict[str, Any]
    sections: dict[str, dict[str, Any]]
    timeout_s: float = 900.0

    def price(self, instance_type: str, region: str) -> float:
        """USD per hour on demand, by the controller's own table; of a type that it lacks, the dearest of it."""
        types = self.catalog.TYPES
        known = types.get(instance_type) or max(types.values(), key=lambda one: one.price_per_hour)
        return float(self.catalog.on_demand_price(known, region))


KINDS = {
    "aws": Kind(Aws, "us-east-1", "c6a.large", "s3", aws_catalog, {}, {"s3": {}}),
    "gcp": Kind(Gcp, "us-central1", "n2-standard-2", "gcs", gcp_catalog, {}, {"gcs": {}}),
    # Azure evicts a machine within half an hour of the request:
    # learn.microsoft.com/rest/api/compute/virtual-machines/simulate-eviction
    "azure": Kind(
        Azure,
        "eastus",
        "Standard_F2s_v2",
        "azure",
        azure_catalog,
        {"resource_group": LABEL},
        {"azure_blob": {}},
        timeout_s=2400.0,
    ),
}
