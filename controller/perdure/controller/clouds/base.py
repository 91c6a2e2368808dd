"""What every cloud can do: one small synchronous Protocol, and the plain values that cross it.

No method sleeps or retries: waiting and repeating are the caller's, as data. Every method may raise the SDK's own
exceptions; `classify` says what they mean. What only some clouds can do is a Protocol of its own (`Interruptible`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from perdure.recovery.history import Advice
from perdure.recovery.market import FaultKind, Offer
from perdure.recovery.reasons import Reason

# Clouds are eventually consistent: a machine just bought may be neither described nor listed for this long, and a "not
# found" of one says nothing.
VISIBLE_WITHIN_S = 30.0


@dataclass(frozen=True)
class Owner:
    """Who an instance belongs to: written on it as tags, and found again by them.

    `generation` is the attempt's; `token` the launch intent's idempotency token.
    """

    controller: str
    job_id: int
    task: int
    generation: int
    token: str


@dataclass(frozen=True)
class Bootstrap:
    """What a new machine needs to call home, and nothing else.

    `endpoint`: base URL of the controller. `token`: worth this one attempt. `artifacts`: name → sha256 of what the
    controller serves (`agent` is a zipapp; `rclone` a static binary). `fingerprint`: SHA-256 of the one certificate
    that it may trust (the agent's PERDURE_FINGERPRINT); None: one that an authority vouches for, or plain HTTP.
    """

    endpoint: str
    token: str = field(repr=False)
    artifacts: dict[str, str]
    fingerprint: str | None = None


@dataclass(frozen=True)
class LaunchRequest:
    """Machines to buy: `num_nodes` of `offer`, ranks 0…n-1. Frozen in the intent before the cloud is called.

    `disk_gib` None: the cloud's default. `disk_tier`/`network_tier`/`image_id`: as in the task, or None. `labels`: the
    user's, put on the machines beside the owner's tags.
    """

    owner: Owner
    offer: Offer
    num_nodes: int
    bootstrap: Bootstrap
    name: str
    disk_gib: int | None = None
    disk_tier: str | None = None
    network_tier: str | None = None
    image_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"  # on its way out; a workload may still run
    GONE = "gone"  # nothing runs on it any more, and it is not billed


@dataclass(frozen=True)
class Instance:
    """A machine as its cloud describes it. `gone_reason`: why, once it is ENDING or GONE and the cloud tells; an
    ENDING one with NO_CAPACITY was accepted, found no room after all, never ran, and is to be ended still.

    Times are epoch seconds; `ended_at` is when billing stopped, None while it runs or where the cloud does not tell.
    """

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
    ended_at: float | None = None
    gone_reason: Reason | None = None


@dataclass(frozen=True)
class Fault:
    """What a failed call means. Scope fields that are None match anything within `cloud`.

    `retry_after_s`: how long to avoid the scope (or to wait), None where the cloud's table has no opinion.
    `reason`: NO_CAPACITY, QUOTA, THROTTLED, PRICE, BAD_CREDENTIALS or BAD_REQUEST.
    """

    kind: FaultKind
    reason: Reason
    code: str
    message: str
    retry_after_s: float | None = None
    whole_region: bool = False
    whole_cloud: bool = False
    any_market: bool = False
    any_instance_type: bool = False


class Cloud(Protocol):
    """One cloud. Shared by threads: implementations lock what they must.

    `ignores`: the fields of `LaunchRequest` that have no effect in this cloud.
    """

    name: str
    ignores: frozenset[str]

    def notes(self) -> Sequence[str]:
        """What a user should know of this cloud as it is set up here, a sentence each."""
        ...

    def unusable(self) -> str | None:
        """Why this cloud can not be used now, in one sentence that ends in what to do; None when it can."""
        ...

    def offers(self) -> Sequence[Offer]:
        """All that it sells, spot and on-demand, with prices in force. Cheap: from a cache where a crawl is slow."""
        ...

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        """Buy all of the request's machines or none.

        Idempotent by `request.owner.token`: a second call returns the machines of the first, whatever became of them.
        A partial success is given back before raising.
        """
        ...

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        """The machines of `ids` that the cloud still knows. One that it does not know is GONE, or was bought
        less than `VISIBLE_WITHIN_S` ago."""
        ...

    def list_owned(self, controller: str) -> Sequence[Instance]:
        """Every machine that carries this controller's tag and is not GONE, in every region that it uses."""
        ...

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        """Ask for the end of these machines. One that is not found is a success. Returns before they are gone."""
        ...

    def classify(self, error: Exception) -> Fault:
        """What an exception of any method means. An unknown error of `launch` is FIND_OUT, never a capacity error."""
        ...


@runtime_checkable
class Advising(Protocol):
    """A cloud that tells how likely its spot machines are to be taken."""

    def advice(self) -> Sequence[Advice]:
        """What it said last. Cheap: from a cache; what went wrong is logged, and leaves what was said before."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A cloud that can rehearse an interruption."""

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:
        """Take the machine away: with a notice of `notice_s` seconds in its metadata, or at once when None."""
        ...


@dataclass(frozen=True)
class Disk:
    """A disk that outlives machines. `zone`: where alone it can be used. `is_ready`: it can be attached."""

    id: str
    zone: str
    gib: int
    is_ready: bool = True


@dataclass(frozen=True)
class Standing:
    """What a controller's machine needs beside what a node's does.

    `program`: what it runs, Python 3.11 (`hosting.caretaker`), for which `home` is the folder of the state, on `disk`.
    `port`: the one that `callers` (an IP network) may reach. `role`: the name of what it is allowed in its cloud; it is
    made if there is none.
    """

    program: str = field(repr=False)
    home: str
    disk: Disk
    port: int
    callers: str = "0.0.0.0/0"
    role: str = ""


class NotYet(Exception):
    """What a launch needs was made a moment ago, and is not known everywhere: make the same call again soon."""


@runtime_checkable
class Hosting(Protocol):
    """A cloud that can give a controller a machine of its own. All may be called again: what is there is found."""

    def found_here(self) -> Mapping[str, str]:
        """Fields of the cloud's section in config.yaml that are not in it, but were found in this computer's
        environment: a machine has another."""
        ...

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:
        """The disk of that name, in whatever zone of the region it is; made in `zone` if there is none."""
        ...

    def stand(self, request: LaunchRequest, needs: Standing) -> Instance:
        """Buy the machine of `request` (one node, on demand; its bootstrap is not used). As idempotent as `launch`.
        Raises NotYet."""
        ...

    def settle(self, instance: Instance, disk: Disk) -> str | None:
        """Attach the disk, if the machine is up; the IP address at which users and nodes reach it, None until then.

        The next machine of the same owner has the same address: running nodes call there.
        """
        ...

    def leave(self, name: str, region: str) -> None:
        """Give back what costs something and is of no use without the machine, which is gone. The disk stays.
        Raises NotYet."""
        ...

    def remove_disk(self, name: str, region: str) -> None:
        """The disk of that name is no more, nor what it holds. Raises NotYet while it goes, or a machine has it."""
        ...
