"""Brings a controller up on a machine of its own, and takes it down: each step can be done again after any end.

`hosted.json` says how far it came (`sdk.hosted`), and is written before each step. Whatever is found of a bring-up that
was broken off is ended first, and nothing is left running by one that fails. The disk is deleted by `down` alone, when
it is told so.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import secrets
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import (
    Bootstrap,
    Cloud,
    Disk,
    Instance,
    InstanceState,
    LaunchRequest,
    NotYet,
    Owner,
    Standing,
)
from perdure.controller.clouds.pricelist import FIRST_FETCH_S, Listing
from perdure.controller.hosting import asking, configuring, packing
from perdure.controller.hosting.asking import CannotHost
from perdure.controller.listening import Certificate, Listening
from perdure.controller.tls import tls_of
from perdure.recovery.market import Market, Offer
from perdure.sdk import hosted
from perdure.sdk.client import knows
from perdure.sdk.endpoint import Endpoint
from perdure.sdk.hosted import DOWN, MAKING, UP, Hosted
from perdure.sdk.pinning import WrongCertificate, connect

Say = Callable[[str], None]

_ELSEWHERE = (
    "choose another --instance-type, or, if the disk holds nothing yet, delete it (`perdure controller down "
    "--delete-disk`) and name another zone"
)

LEAST_VCPUS, LEAST_MEMORY_GIB = 2.0, 4.0
ROOT_GIB = 20
DOOR_S = 900.0
INSTALL_S = 1800.0
SERVE_S = 120.0
GONE_S = 300.0
STAND_AGAIN_S = 2.0  # what was made a moment ago is told slowly, and each try is a launch


@dataclass(frozen=True)
class Wish:
    """What the user asks for. `zone`, `instance_type` None: the cheapest that will do."""

    cloud: str
    region: str | None
    zone: str | None = None
    instance_type: str | None = None
    disk_gib: int = 20
    role: str = "perdure-controller"
    callers: str = "0.0.0.0/0"

    @property
    def infra(self) -> str:
        return "/".join(part for part in (self.cloud, self.region, self.zone) if part)


def up(home: Path, wish: Wish, clock: Clock, say: Say) -> None:
    """One controller serves, on a machine of its own, when this returns. Raises CannotHost, SettingsError."""
    with _alone(home):
        record = hosted.read(home)
        if record is not None and not _fits(record, wish):
            where = f"{record.cloud}/{record.region}"
            raise CannotHost(
                f"your controller {'is' if record.stage == UP else 'has its state'} in {where}: bring it up there, or "
                f"move {home / hosted.FILE} aside to begin another"
            )
        cloud = configuring.cloud_of(home, wish.cloud, wish.region, clock)
        if record is not None and record.stage == UP:
            if knows(record.endpoint):
                say(f"The controller runs already, at {record.url}.")
                return
            if _living(cloud, record):
                raise CannotHost(
                    f"{record.instance} in {record.zone} runs, but no controller answers at {record.url}: wait, or "
                    "begin anew with `perdure controller down --force` and `up`; its state stays"
                )
            say(f"Its machine {record.instance} is gone; another gets its disk.")
        was_lost = record is not None and record.stage != DOWN and bool(record.token)
        record = record or Hosted(
            MAKING, f"hosting-{uuid.uuid4().hex[:12]}", wish.infra, _free_port() if wish.cloud == "local" else 8443
        )
        try:
            _bring_up(home, cloud, record, wish, clock, say)
        except BaseException:
            _give_back(home, cloud, record.id, say, was_lost=was_lost)
            raise


def down(home: Path, clock: Clock, say: Say, *, with_disk: bool = False) -> None:
    """No machine of the controller is left; of its state none either if `with_disk`. Raises CannotHost."""
    with _alone(home):
        record = hosted.read(home)
        if record is None or (record.stage == DOWN and not with_disk):
            say("No controller is up.")
            return
        if record.cloud:
            cloud = configuring.cloud_of(home, record.cloud, record.region, clock)
            _end(cloud, record, say)
            _leave(cloud, record)
            hosted.write(home, replace(record, stage=DOWN, instance="", push=""))
            if with_disk:
                asking.step(
                    "deleting the disk", cloud, lambda: asking.hosting(cloud).remove_disk(record.id, record.region)
                )
        if with_disk:
            hosted.forget(home)
            say(f"The controller is down, and its disk {record.disk} is deleted. Nothing of it is left.")
            return
        say(
            f"The controller is down. What stays is its disk {record.disk} ({record.disk_gib} GiB, {record.zone}): "
            "jobs' history, logs and secrets. `perdure controller up` with the same --infra goes on with it."
        )


def _bring_up(home: Path, cloud: Cloud, record: Hosted, wish: Wish, clock: Clock, say: Say) -> None:
    hosting = asking.hosting(cloud)
    offers = _offers(cloud, wish)
    first = offers[0]
    record = replace(record, stage=MAKING, cloud=first.cloud, region=first.region, zone=first.zone)
    hosted.write(home, record)
    disk = asking.asked(
        "making the disk",
        cloud,
        lambda: hosting.state_disk(record.id, region=first.region, zone=first.zone, gib=wish.disk_gib),
    )
    here = [offer for offer in offers if offer.zone == disk.zone]
    if not here:
        raise CannotHost(f"the disk is in {disk.zone}, where this is not sold: {_ELSEWHERE}")
    offer = here[0]
    record = replace(
        record,
        zone=offer.zone,
        instance_type=offer.instance_type,
        push=uuid.uuid4().hex,
        disk=disk.id,
        disk_gib=disk.gib,
        role=wish.role,
        callers=wish.callers,
    )
    hosted.write(home, record)
    _end(cloud, record, say)
    secret, door, program = _door(record, disk, clock)
    request = LaunchRequest(
        Owner(record.id, 0, 0, 0, record.push),
        offer,
        1,
        Bootstrap("", "", {"agent": ""}),
        "perdure-controller",
        ROOT_GIB,
    )
    standing = Standing(program, configuring.home_on_machine(disk, cloud), disk, record.port, wish.callers, wish.role)
    say(f"Buying {offer.instance_type} in {offer.zone}, on demand, for ${offer.price_per_hour:.4f} an hour …")
    instance = asking.step(
        "buying a machine", cloud, lambda: hosting.stand(request, standing), pause_s=STAND_AGAIN_S, if_full=_ELSEWHERE
    )
    record = replace(record, instance=instance.id)
    hosted.write(home, record)
    address = asking.until(
        lambda: _settled(hosting, instance, record.id, offer, wish.disk_gib), asking.MACHINE_S, "it did not start"
    )
    url = f"https://{address}:{record.port}"
    say(f"{instance.id} is up at {address}; sending Perdure to it …")
    packed = configuring.packed(home, cloud, url, record.port)
    said = _push(Endpoint(url, secret, fingerprint=door), packed)
    record = replace(record, url=url, token=said["token"], fingerprint=said["fingerprint"])
    asking.until(lambda: knows(record.endpoint), SERVE_S, f"no controller answers at {url}")
    hosted.write(home, replace(record, stage=UP))
    say(f"The controller runs at {url} (sha256:{record.fingerprint}), and every command here goes to it now.")


def _offers(cloud: Cloud, wish: Wish) -> list[Offer]:
    """What will do, cheapest first. Raises CannotHost."""
    if isinstance(cloud, Listing):
        cloud.prices.refresh(FIRST_FETCH_S)
    try:
        sold = [
            offer
            for offer in cloud.offers()
            if offer.market is Market.ON_DEMAND
            and offer.accelerators is None
            and wish.region in (None, offer.region)
            and wish.zone in (None, offer.zone)
        ]
    except Exception as error:
        raise CannotHost(f"asking {cloud.name} what it sells: {cloud.classify(error).message}") from error
    fit = [
        offer
        for offer in sold
        if (
            offer.instance_type == wish.instance_type
            if wish.instance_type
            else offer.vcpus >= LEAST_VCPUS and offer.memory_gib >= LEAST_MEMORY_GIB
        )
    ]
    if not sold:
        raise CannotHost(f"{cloud.name} sells nothing in {wish.infra}: is there such a region, and may you use it?")
    if not fit:
        kinds = ", ".join(sorted({offer.instance_type for offer in sold})[:12])
        raise CannotHost(f"{wish.infra} sells no {wish.instance_type or 'such machine'}: choose among {kinds}")
    return sorted(fit, key=lambda offer: (offer.price_per_hour, offer.zone))


def _door(record: Hosted, disk: Disk, clock: Clock) -> tuple[str, str, str]:
    """(secret, fingerprint, program): what lets one pack in, once, and is worth nothing afterwards."""
    secret = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="perdure-door-") as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        made = tls_of(Listening(Certificate(cert, key, made=True)), host="localhost", clock=clock)
        assert made is not None
        settings = {
            "home": configuring.home_of(record.cloud, disk),
            "host": configuring.host_of(record.cloud),
            "port": str(record.port),
            "secret": secret,
            "certificate": cert.read_text(),
            "key": key.read_text(),
        }
    return secret, made.fingerprint, packing.first_program(settings)


def _settled(cloud: asking.HostingCloud, instance: Instance, name: str, offer: Offer, gib: int) -> str | None:
    """Raises CannotHost for a machine that has ended."""

    def settle() -> str | None:
        for now in cloud.describe(offer.region, [instance.id]):
            if now.state in (InstanceState.ENDING, InstanceState.GONE):
                raise CannotHost(f"{instance.id} has ended as soon as it came to be ({now.gone_reason}): try again")
            return cloud.settle(now, cloud.state_disk(name, region=offer.region, zone=offer.zone, gib=gib))
        return None

    try:
        return asking.asked(f"attaching the disk to {instance.id}", cloud, settle)
    except NotYet:
        return None


def _push(door: Endpoint, packed: bytes) -> dict[str, Any]:
    """Raises CannotHost."""

    def once() -> tuple[int, bytes] | None:
        try:
            with contextlib.closing(connect(door, timeout_s=10.0)) as link:
                link.connect()
                link.sock.settimeout(INSTALL_S)
                link.request("PUT", "/software", packed, {"Authorization": f"Bearer {door.token}"})
                answer = link.getresponse()
                return answer.status, answer.read()
        except WrongCertificate as error:
            raise CannotHost(f"{error.message}: that is not the machine that was bought") from error
        except (OSError, http.client.HTTPException):
            return None

    status, body = asking.until(once, DOOR_S, f"it does not answer at {door.url}; is the port open to this computer?")
    said: dict[str, Any] = json.loads(body)
    if status != 200:
        raise CannotHost(f"installing Perdure on the machine: {said.get('error', status)}")
    return said


def _living(cloud: Cloud, record: Hosted) -> Sequence[Instance]:
    return asking.asked("listing machines", cloud, lambda: cloud.list_owned(record.id))


def _end(cloud: Cloud, record: Hosted, say: Say) -> None:
    """Every machine of the record is gone when this returns. Raises CannotHost."""

    def gone() -> bool:
        living = _living(cloud, record)
        for one in living:
            if one.state is not InstanceState.ENDING:
                say(f"Ending {one.id} …")
                cloud.terminate(one.region, [one.id])
        return not living

    asking.until(gone, GONE_S, "a machine does not end: see your cloud's console")


def _leave(cloud: Cloud, record: Hosted) -> None:
    asking.step("giving the address back", cloud, lambda: asking.hosting(cloud).leave(record.id, record.region))


def _give_back(home: Path, cloud: Cloud, id: str, say: Say, *, was_lost: bool) -> None:
    record = hosted.read(home)
    if record is None or record.id != id or record.stage != MAKING:
        return
    _end(cloud, record, say)
    if was_lost:  # nodes of jobs that run call its address
        hosted.write(home, replace(record, stage=UP, push=""))
        say(
            f"Nothing is left running; the disk {record.disk} and the address {record.url} stay for the next try. "
            "`perdure controller down --force` gives the address back."
        )
        return
    _leave(cloud, record)
    if record.token:
        hosted.write(home, replace(record, stage=DOWN, instance="", push=""))
    say(f"Nothing is left running; the disk {record.disk} stays, for the next try.")


def _fits(record: Hosted, wish: Wish) -> bool:
    return record.cloud in ("", wish.cloud) and (not record.region or wish.region in (None, record.region))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One at a time. Raises CannotHost."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(home / "hosted.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotHost("another `perdure controller up`, `upgrade` or `down` is at it: wait for it") from error
        yield
