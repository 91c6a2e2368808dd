"""The `Cloud` protocol that every cloud implements, and the plain values that cross it.

No method sleeps or retries: the caller does both, as data. Every method may raise the SDK's own exceptions; `classify`
maps them to a `Fault`. Each optional ability is a Protocol of its own, such as `Interruptible`.

To add a cloud: implement `Cloud` and the optional protocols that apply, write a `CloudDescriptor` (`base.descriptor`),
declare it as an entry point in the group `perdure.clouds`, and run the contract suite (`clouds.contract_suite`).
docs/contributing/adding-a-cloud.md has the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from perdure.recovery.market.history import Advice
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Offer
from perdure.recovery.reasons import Reason

# Clouds are eventually consistent: for this long, a new machine may be missing from `describe` and `list_owned`.
# A "not found" proves nothing before then.
VISIBLE_WITHIN_S = 30.0


@dataclass(frozen=True)
class Owner:
    """The attempt that an instance belongs to. It is written on the instance as tags, and read back from them."""

    controller: str
    job_id: int
    task: int
    generation: int  # of the attempt
    token: str  # the idempotency token of the launch intent


@dataclass(frozen=True)
class Bootstrap:
    """What a new machine needs to connect to the controller, and nothing else."""

    #: Base URL of the controller.
    endpoint: str
    #: Valid for this attempt alone.
    token: str = field(repr=False)
    #: Name → sha256 of the files that the controller serves: `agent` is a zipapp, `rclone` a static binary.
    artifacts: dict[str, str]
    #: SHA-256 of the only certificate to trust (the agent's PERDURE_FINGERPRINT). None: a certificate that an
    #: authority has signed, or plain HTTP.
    fingerprint: str | None = None


@dataclass(frozen=True)
class OpenPorts:
    """Ports of machines that anybody may connect to by TCP."""

    name: str  # of the rule that opens them, unique in an account
    ranges: tuple[tuple[int, int], ...]  # (first, last)


@dataclass(frozen=True)
class LaunchRequest:
    """Machines to launch: `num_nodes` of `offer`, with ranks 0…n-1. The intent stores it before the cloud is called."""

    owner: Owner
    offer: Offer
    num_nodes: int
    bootstrap: Bootstrap
    name: str
    disk_gib: int | None = None  # None: the cloud's default
    disk_tier: str | None = None  # as in the task
    network_tier: str | None = None  # as in the task
    image_id: str | None = None  # as in the task
    labels: dict[str, str] = field(default_factory=dict)  # the user's; set beside the owner's tags
    settings: dict[str, Any] = field(default_factory=dict)  # the task's `config.<cloud>`, as it is written
    mount_modes: tuple[str, ...] = ()  # MOUNT, MOUNT_CACHED: how the task mounts buckets
    open_ports: OpenPorts | None = None  # to the internet; only for a cloud that is `OpensPorts`
    keeps_disks: bool = False  # the machines may be stopped: when one powers itself off, its disk must stay


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"  # shutting down; a workload may still run
    STOPPED = "stopped"  # nothing runs on it; only its disk is billed, and it can be started again
    GONE = "gone"  # nothing runs on it and it is no longer billed


@dataclass(frozen=True)
class Instance:
    """A machine as its cloud describes it. Times are epoch seconds."""

    id: str
    rank: int
    owner: Owner
    state: InstanceState
    cloud: str
    region: str
    zone: str
    instance_type: str
    ip: str | None = None
    launched_at: float | None = None
    #: When billing stopped; None while the machine runs, or if the cloud does not report it.
    ended_at: float | None = None
    #: Why the machine is ENDING or GONE, if the cloud reports it. ENDING with NO_CAPACITY: the cloud accepted the
    #: machine but found no capacity for it. It never ran and must still be terminated.
    gone_reason: Reason | None = None
    #: In the cloud's words, with what to do where that is known; "" if the reason says it all.
    gone_message: str = ""


@dataclass(frozen=True)
class Fault:
    """What a failed call means for later calls. The scope is one offer; the flags at the end widen it."""

    kind: FaultKind
    reason: Reason  # NO_CAPACITY, QUOTA, THROTTLED, PRICE, BAD_CREDENTIALS or BAD_REQUEST
    code: str  # the cloud's own
    message: str
    #: How long to avoid the scope, or to wait. None: the caller's default.
    retry_after_s: float | None = None
    whole_region: bool = False
    whole_cloud: bool = False
    any_market: bool = False
    any_instance_type: bool = False


class Cloud(Protocol):
    """One cloud. Threads share it: an implementation locks its own state."""

    name: str
    ignores: frozenset[str]  # fields of `LaunchRequest` that have no effect in this cloud

    def notes(self) -> Sequence[str]:
        """What a user should know about this cloud as configured, one sentence each."""
        ...

    def unusable(self) -> str | None:
        """Why this cloud cannot be used now, in one sentence that ends in what to do; None if it can."""
        ...

    def offers(self) -> Sequence[Offer]:
        """All offers, spot and on-demand, at current prices. Cheap: a cloud whose prices take long to fetch caches."""
        ...

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        """Launch all of the request's machines or none.

        Idempotent by `request.owner.token`: a second call returns the machines of the first, in their present state. A
        partial launch is terminated before this method raises.
        """
        ...

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        """Those of `ids` that the cloud still reports. A missing one is GONE, or younger than `VISIBLE_WITHIN_S`."""
        ...

    def list_owned(self, controller: str) -> Sequence[Instance]:
        """Every machine with this controller's tag that is not GONE, in every region in use.

        Raises an error if a region does not answer: `PartialListing` where the other regions are still of use.
        """
        ...

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        """Request the termination of these machines and return before they are gone. An unknown id is a success."""
        ...

    def classify(self, error: Exception) -> Fault:
        """What an exception of any method means. An unknown error of `launch` is AMBIGUOUS, never a capacity error."""
        ...


@runtime_checkable
class HasPlacementAdvice(Protocol):
    """A cloud that estimates how likely its spot machines are to be preempted."""

    def advice(self) -> Sequence[Advice]:
        """The newest estimates, from a cache. A failed update is logged and keeps the previous estimates."""
        ...


@runtime_checkable
class HasLocalBuckets(Protocol):
    """A cloud whose machines see the buckets of the local store, because they run on the controller's computer."""

    def buckets_on_node(self) -> str:
        """The path of the buckets' folder on a machine."""
        ...


@runtime_checkable
class HasTaskSettings(Protocol):
    """A cloud with settings of its own in a task: `config.<cloud>`."""

    def check_settings(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Check a task's settings, without calling the cloud. Returns warnings; raises SectionError."""
        ...


@runtime_checkable
class HasMountLimits(Protocol):
    """A cloud of which some machines cannot mount buckets."""

    def mount_problem(
        self, region: str | None, settings: Mapping[str, Any], *, mode: str, num_nodes: int
    ) -> str | None:
        """Why machines in `region` (None: in any) cannot mount buckets, in one sentence; None if they can.

        `settings`: the task's `config.<cloud>`. `mode`: MOUNT or MOUNT_CACHED. `num_nodes`: of the task. Raises
        SectionError for invalid settings.
        """
        ...


@runtime_checkable
class ExplainsWaits(Protocol):
    """A cloud whose machines wait after their launch, such as for a place in a queue."""

    def why_waiting(self, controller: str, job_id: int, task: int) -> str | None:
        """Why machines of the task that are launched do not run yet, in the cloud's words; None if nothing is known.

        Never calls the cloud: users read it with every listing.
        """
        ...


@runtime_checkable
class Stoppable(Protocol):
    """A cloud that stops machines and starts them again on the same disks. Only on-demand machines are stopped."""

    def stop(self, region: str, ids: Sequence[str]) -> None:
        """Request the stop of these machines and return before they are STOPPED. Their disks are kept.

        An unknown, stopped or ended machine is a success. Only for machines that were launched with `keeps_disks`.
        """
        ...

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        """Start all of these machines, by rank, as those of `request`, or none: they get its owner and its bootstrap.

        Idempotent: a machine that has the owner's token and runs is left alone. Raises as `launch` does; then those
        that were started are stopped again. Raises StoppedMachineLost if one of them does not exist any more.
        """
        ...

    def disk_price_per_hour(self, offer: Offer, disk_gib: int | None, disk_tier: str | None) -> float:
        """USD per hour for the disk of one machine that is stopped, by the list price."""
        ...


@runtime_checkable
class OpensPorts(Protocol):
    """A cloud that opens ports of its machines to the internet when they are launched: exactly those of the request."""

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        """Machine → the address at which its open ports are reached now, of those that have one."""
        ...

    def close_ports(self, region: str, name: str) -> None:
        """Delete the rule `OpenPorts.name` of a region. A missing one is a success.

        Raises EventuallyConsistent while a machine that is ending still uses it.
        """
        ...


class StoppedMachineLost(Exception):
    """A machine that was to be started again does not exist any more, nor does its disk."""


@runtime_checkable
class HasConsole(Protocol):
    """A cloud that stores what its machines write to their console: it shows why one never called the controller."""

    def console_output(self, region: str, id: str) -> str:
        """What a machine that still exists has written, or the end of it; empty if the cloud has nothing yet."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A cloud that can simulate an interruption."""

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:
        """Preempt the machine: after a notice of `notice_s` seconds in its metadata, or immediately if None."""
        ...


@dataclass(frozen=True)
class Disk:
    """A disk that outlives machines."""

    id: str
    zone: str  # the only zone whose machines can attach it
    gib: int
    is_ready: bool = True  # it can be attached


@dataclass(frozen=True)
class HostRequirements:
    """What a controller's own machine needs in addition to what a node's machine needs."""

    #: The Python 3.11 program that the machine runs (`hosting.installer`).
    program: str = field(repr=False)
    #: The folder of the controller's state, on `disk`.
    home: str
    disk: Disk
    #: The only open port; machines in the IP network `allowed_cidr` may connect to it.
    port: int
    allowed_cidr: str = "0.0.0.0/0"
    #: The name of the machine's role or service account in its cloud. Created if it does not exist.
    role: str = ""


class EventuallyConsistent(Exception):
    """A resource that was just created or deleted is not visible everywhere yet: repeat the same call soon."""


@runtime_checkable
class HasHostOffers(Protocol):
    """A cloud with small machines that suffice for a controller, and that no task should run on."""

    def host_offers(self, region: str) -> Sequence[Offer]:
        """On-demand offers of the region, beside those of `Cloud.offers`. Prices may be estimates. Calls the cloud."""
        ...


@runtime_checkable
class HasStoreSettings(Protocol):
    """A cloud that hosts controllers, and creates with their role what the nodes of their jobs need to use buckets."""

    def store_settings(self, role: str) -> Mapping[str, Mapping[str, str]]:
        """Section of config.yaml → its fields, for the stores of a controller whose machine has this role.

        Empty if `controller up` has not created the role, or if the caller may not see it: then the user configures
        the stores.
        """
        ...

    def renew_roles(self, role: str) -> None:
        """Give the roles that an earlier version's `controller up` created what this version gives them. Repeatable."""
        ...


@runtime_checkable
class Hosting(Protocol):
    """A cloud that can host a controller on a machine of its own. Every method is idempotent."""

    def environment_settings(self) -> Mapping[str, str]:
        """Fields of the cloud's section of config.yaml as they are in force here, with this computer's environment.

        The controller's machine has another environment, so they are written to its config.yaml.
        """
        ...

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        """The disk of that name, in any zone of the region; created in `zone` if there is none."""
        ...

    def launch_host(self, request: LaunchRequest, needs: HostRequirements) -> Instance:
        """Launch the machine of `request` (one on-demand node; its bootstrap is unused). Idempotent like `launch`.

        Raises EventuallyConsistent.
        """
        ...

    def attach_disk(self, instance: Instance, disk: Disk) -> str | None:
        """Attach the disk once the machine runs. Returns the IP address for users and nodes, None until it is known.

        The owner's next machine gets the same address, since running nodes connect to it.
        """
        ...

    def release(self, name: str, region: str) -> None:
        """Release what is billed and useless without the machine, which is gone. The disk stays.

        Raises EventuallyConsistent.
        """
        ...

    def remove_disk(self, name: str, region: str) -> None:
        """Delete the disk of that name with its contents. Raises EventuallyConsistent until it is gone."""
        ...
