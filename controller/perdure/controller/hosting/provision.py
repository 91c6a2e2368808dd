"""Provisions a controller on a machine of its own, and takes it down. Every step can be repeated after an interruption.

`hosted.json` (`sdk.connection.hosted_controller`) records the progress and is written before each step. `up` first
terminates the machines of an interrupted attempt, and a failed `up` leaves no machine running. Only `down` with
`delete_disk` deletes the disk.
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

from perdure.controller.clouds.base.protocol import (
    Bootstrap,
    Cloud,
    Disk,
    EventuallyConsistent,
    HasHostOffers,
    HostRequirements,
    Instance,
    InstanceState,
    LaunchRequest,
    Owner,
    Stoppable,
)
from perdure.controller.clouds.pricing.price_list import FIRST_FETCH_TIMEOUT_S, HasPriceList
from perdure.controller.hosting import bundle, config, retry
from perdure.controller.hosting.retry import CannotHost
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.listen import Certificate, ListenConfig
from perdure.controller.runtime.security.tls import load_tls
from perdure.recovery.market.view import Market, Offer
from perdure.sdk.connection import hosted_controller
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.health import is_authorized
from perdure.sdk.connection.hosted_controller import CREATING, DOWN, UP, Hosted
from perdure.sdk.connection.private_home import make_private
from perdure.sdk.connection.transport import WrongCertificate, connect

Report = Callable[[str], None]
"""Shows one line of progress to the user."""

_ELSEWHERE = (
    "choose another --instance-type, or, if the disk is still empty, delete it (`perdure controller down "
    "--delete-disk`) and name another zone"
)

MIN_VCPUS, MIN_MEMORY_GIB = 2.0, 4.0
ROOT_GIB = 20
HOURS_PER_MONTH = 730
ADDRESS_PRICE_PER_HOUR = 0.005  # of a public IPv4 address: the same in all three clouds, 2026
INSTALLER_TIMEOUT_S = 900.0
INSTALL_TIMEOUT_S = 1800.0
SERVE_TIMEOUT_S = 120.0
TERMINATION_TIMEOUT_S = 300.0
LAUNCH_RETRY_INTERVAL_S = 2.0  # each try is a launch, and new resources take seconds to become visible


@dataclass(frozen=True)
class HostRequest:
    """The machine that the user requests for a controller."""

    cloud: str
    region: str | None
    zone: str | None = None  # None: the cheapest zone of the region
    instance_type: str | None = None  # None: the cheapest type that has the minimum size
    disk_gib: int = 20
    role: str = "perdure-controller"
    allowed_cidr: str = "0.0.0.0/0"

    @property
    def infra(self) -> str:
        return "/".join(part for part in (self.cloud, self.region, self.zone) if part)


def up(home: Path, request: HostRequest, clock: Clock, report: Report) -> None:
    """Provision the controller's machine, unless it runs already; returns once the controller serves.

    Raises CannotHost, SettingsError.
    """
    with _exclusive(home):
        record = hosted_controller.load(home)
        if record is not None and not _matches(record, request):
            where = f"{record.cloud}/{record.region}"
            raise CannotHost(
                f"your controller {'is' if record.stage == UP else 'has its state'} in {where}: bring it up there, or "
                f"move {home / hosted_controller.FILE} aside to start another"
            )
        cloud = config.hosting_cloud(home, request.cloud, request.region, clock)
        if record is not None and record.stage == UP:
            if is_authorized(record.endpoint):
                report(f"The controller already runs at {record.url}.")
                return
            if _list_machines(cloud, record):
                raise CannotHost(
                    f"{record.instance} in {record.zone} runs, but no controller answers at {record.url}: wait, or "
                    "start over with `perdure controller down --force` and `up`; its state is kept"
                )
            report(f"Its machine {record.instance} is gone; a new one gets its disk.")
        was_lost = record is not None and record.stage != DOWN and bool(record.token)
        record = record or Hosted(
            CREATING,
            f"hosting-{uuid.uuid4().hex[:12]}",
            request.infra,
            _free_port() if config.shares_computer(request.cloud) else 8443,
        )
        try:
            _provision(home, cloud, record, request, clock, report)
        except BaseException:
            _clean_up_failed(home, cloud, record.id, report, was_lost=was_lost)
            raise


def down(home: Path, clock: Clock, report: Report, *, delete_disk: bool = False) -> None:
    """Terminate the controller's machine, and delete its disk if `delete_disk`. Raises CannotHost."""
    with _exclusive(home):
        record = hosted_controller.load(home)
        if record is None or (record.stage == DOWN and not delete_disk):
            report("No controller is up.")
            return
        if record.cloud:
            cloud = config.hosting_cloud(home, record.cloud, record.region, clock)
            _terminate_all(cloud, record, report)
            _release_address(cloud, record)
            hosted_controller.save(home, replace(record, stage=DOWN, instance="", launch_token=""))
            if delete_disk:
                retry.call_until_ready(
                    "deleting the disk",
                    cloud,
                    lambda: retry.require_hosting(cloud).remove_disk(record.id, record.region),
                )
        if delete_disk:
            hosted_controller.remove(home)
            report(f"The controller is down and its disk {record.disk} is deleted. Nothing of it is left.")
            return
        report(
            f"The controller is down. Its disk {record.disk} ({record.disk_gib} GiB, {record.zone}) stays, with job "
            "history, logs and secrets. `perdure controller up` with the same --infra continues with it."
        )


def _provision(home: Path, cloud: Cloud, record: Hosted, request: HostRequest, clock: Clock, report: Report) -> None:
    hosting = retry.require_hosting(cloud)
    offers = _offers(cloud, request)
    first = offers[0]
    record = replace(record, stage=CREATING, cloud=first.cloud, region=first.region, zone=first.zone)
    hosted_controller.save(home, record)
    disk = retry.call_once(
        "creating the disk",
        cloud,
        lambda: hosting.state_disk(record.id, region=first.region, zone=first.zone, gib=request.disk_gib),
    )
    in_zone = [offer for offer in offers if offer.zone == disk.zone]
    if not in_zone:
        raise CannotHost(f"the disk is in {disk.zone}, which does not sell such a machine: {_ELSEWHERE}")
    offer = in_zone[0]
    record = replace(
        record,
        zone=offer.zone,
        instance_type=offer.instance_type,
        launch_token=uuid.uuid4().hex,
        disk=disk.id,
        disk_gib=disk.gib,
        role=request.role,
        allowed_cidr=request.allowed_cidr,
    )
    hosted_controller.save(home, record)
    _terminate_all(cloud, record, report)
    secret, fingerprint, program = _create_installer(record, disk, clock)
    launch = LaunchRequest(
        Owner(record.id, 0, 0, 0, record.launch_token),
        offer,
        1,
        Bootstrap("", "", {"agent": ""}),
        "perdure-controller",
        ROOT_GIB,
    )
    requirements = HostRequirements(
        program, config.home_on_machine(disk, cloud), disk, record.port, request.allowed_cidr, request.role
    )
    report(f"Launching {offer.instance_type} in {offer.zone}, on demand, for {_price(cloud, offer, disk.gib)} …")
    instance = retry.call_until_ready(
        "launching the machine",
        cloud,
        lambda: hosting.launch_host(launch, requirements),
        pause_s=LAUNCH_RETRY_INTERVAL_S,
        if_full=_ELSEWHERE,
    )
    record = replace(record, instance=instance.id)
    hosted_controller.save(home, record)
    address = retry.wait_until(
        lambda: _attach_disk(hosting, instance, record.id, offer, request.disk_gib),
        retry.MACHINE_TIMEOUT_S,
        "it did not start",
    )
    url = f"https://{address}:{record.port}"
    report(f"{instance.id} is up at {address}; sending Perdure to it …")
    content = config.build_bundle_for(home, cloud, url, record.port, record.role)
    installed = _send_bundle(Endpoint(url, secret, fingerprint=fingerprint), content)
    record = replace(record, url=url, token=installed["token"], fingerprint=installed["fingerprint"])
    retry.wait_until(lambda: is_authorized(record.endpoint), SERVE_TIMEOUT_S, f"no controller answers at {url}")
    hosted_controller.save(home, replace(record, stage=UP))
    report(
        f"The controller runs at {url} (sha256:{record.fingerprint}), and every command on this computer now uses it."
    )


def _offers(cloud: Cloud, request: HostRequest) -> list[Offer]:
    """On-demand offers that satisfy the request, cheapest first. Raises CannotHost."""
    if isinstance(cloud, HasPriceList):
        cloud.prices.refresh(FIRST_FETCH_TIMEOUT_S)
    try:
        hosts = cloud.host_offers(request.region) if isinstance(cloud, HasHostOffers) and request.region else ()
        available = [
            offer
            for offer in (*hosts, *cloud.offers())
            if offer.market is Market.ON_DEMAND
            and offer.accelerators is None
            and request.region in (None, offer.region)
            and request.zone in (None, offer.zone)
        ]
    except Exception as error:
        raise CannotHost(f"listing the offers of {cloud.name}: {cloud.classify(error).message}") from error
    fit = [
        offer
        for offer in available
        if (
            offer.instance_type == request.instance_type
            if request.instance_type
            else offer in hosts or (offer.vcpus >= MIN_VCPUS and offer.memory_gib >= MIN_MEMORY_GIB)
        )
    ]
    if not available:
        raise CannotHost(f"{cloud.name} sells nothing in {request.infra}: is there such a region, and may you use it?")
    if not fit:
        kinds = ", ".join(sorted({offer.instance_type for offer in available})[:12])
        raise CannotHost(f"{request.infra} sells no {request.instance_type or 'such machine'}: choose among {kinds}")
    return sorted(fit, key=lambda offer: (offer.price_per_hour, offer.zone))


def _price(cloud: Cloud, offer: Offer, disk_gib: int) -> str:
    """What the machine costs, by the prices known here, and a month of it with its disks and a public address."""
    hourly = f"${offer.price_per_hour:.4f} an hour"
    if not isinstance(cloud, Stoppable) or config.shares_computer(cloud.name):
        return hourly
    disks = sum(cloud.disk_price_per_hour(offer, gib, None) for gib in (ROOT_GIB, disk_gib))
    monthly = HOURS_PER_MONTH * (offer.price_per_hour + disks + ADDRESS_PRICE_PER_HOUR)
    return f"{hourly} (about ${monthly:.0f} a month with its disks and a public address)"


def _create_installer(record: Hosted, disk: Disk, clock: Clock) -> tuple[str, str, str]:
    """(secret, certificate fingerprint, program) of an installer that accepts one bundle, once."""
    secret = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="perdure-installer-") as folder:
        cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        tls = load_tls(ListenConfig(Certificate(cert, key, generated=True)), host="localhost", clock=clock)
        assert tls is not None
        settings = {
            "home": config.home_directory(record.cloud, disk),
            "host": config.listen_host(record.cloud),
            "port": str(record.port),
            "secret": secret,
            "certificate": cert.read_text(),
            "key": key.read_text(),
        }
    return secret, tls.fingerprint, bundle.render_installer(settings)


def _attach_disk(cloud: retry.HostingCloud, instance: Instance, name: str, offer: Offer, gib: int) -> str | None:
    """The machine's address once the disk is attached; None until then. Raises CannotHost if the machine has ended."""

    def attach() -> str | None:
        for current in cloud.describe(offer.region, [instance.id]):
            if current.state in (InstanceState.ENDING, InstanceState.STOPPED, InstanceState.GONE):
                raise CannotHost(f"{instance.id} ended right after its launch ({current.gone_reason}): try again")
            return cloud.attach_disk(current, cloud.state_disk(name, region=offer.region, zone=offer.zone, gib=gib))
        return None

    try:
        return retry.call_once(f"attaching the disk to {instance.id}", cloud, attach)
    except EventuallyConsistent:
        return None


def _send_bundle(installer: Endpoint, content: bytes) -> dict[str, Any]:
    """Returns the credentials that the installed software prints. Raises CannotHost."""

    def once() -> tuple[int, bytes] | None:
        try:
            with contextlib.closing(connect(installer, timeout_s=10.0)) as connection:
                connection.connect()
                connection.sock.settimeout(INSTALL_TIMEOUT_S)
                connection.request("PUT", "/software", content, {"Authorization": f"Bearer {installer.token}"})
                response = connection.getresponse()
                return response.status, response.read()
        except WrongCertificate as error:
            raise CannotHost(f"{error.message}: another machine has that address") from error
        except (OSError, http.client.HTTPException):
            return None

    problem = f"the machine does not respond at {installer.url}; is the port open to this computer?"
    status, body = retry.wait_until(once, INSTALLER_TIMEOUT_S, problem)
    installed: dict[str, Any] = json.loads(body)
    if status != 200:
        raise CannotHost(f"installing Perdure on the machine: {installed.get('error', status)}")
    return installed


def _list_machines(cloud: Cloud, record: Hosted) -> Sequence[Instance]:
    return retry.call_once("listing machines", cloud, lambda: cloud.list_owned(record.id))


def _terminate_all(cloud: Cloud, record: Hosted, report: Report) -> None:
    """Terminate every machine of the record and wait until they are gone. Raises CannotHost."""

    def all_gone() -> bool:
        machines = _list_machines(cloud, record)
        for machine in machines:
            if machine.state is not InstanceState.ENDING:
                report(f"Terminating {machine.id} …")
                cloud.terminate(machine.region, [machine.id])
        return not machines

    retry.wait_until(all_gone, TERMINATION_TIMEOUT_S, "a machine does not terminate: see your cloud's console")


def _release_address(cloud: Cloud, record: Hosted) -> None:
    retry.call_until_ready(
        "releasing the address", cloud, lambda: retry.require_hosting(cloud).release(record.id, record.region)
    )


def _clean_up_failed(home: Path, cloud: Cloud, id: str, report: Report, *, was_lost: bool) -> None:
    """Terminate what a failed `up` launched. `was_lost`: an earlier machine's address is kept for its jobs' nodes."""
    record = hosted_controller.load(home)
    if record is None or record.id != id or record.stage != CREATING:
        return
    _terminate_all(cloud, record, report)
    if was_lost:  # the nodes of running jobs connect to that address
        hosted_controller.save(home, replace(record, stage=UP, launch_token=""))
        report(
            f"Nothing is left running; the disk {record.disk} and the address {record.url} are kept for the next try. "
            "`perdure controller down --force` releases the address."
        )
        return
    _release_address(cloud, record)
    if record.token:
        hosted_controller.save(home, replace(record, stage=DOWN, instance="", launch_token=""))
    report(f"Nothing is left running; the disk {record.disk} is kept for the next try.")


def _matches(record: Hosted, request: HostRequest) -> bool:
    return record.cloud in ("", request.cloud) and (not record.region or request.region in (None, record.region))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _exclusive(home: Path) -> Iterator[None]:
    """Hold the lock of `home` against a second command. Raises CannotHost."""
    make_private(home)
    with open(home / "hosted.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotHost("another `perdure controller up`, `upgrade` or `down` is running: wait for it") from error
        yield
