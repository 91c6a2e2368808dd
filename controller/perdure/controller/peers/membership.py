"""What makes this process one of the controllers of its database: lease, time, keyring and the installation's id."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from perdure.controller.peers import home_restart, key_rotation
from perdure.controller.peers.home import database_check
from perdure.controller.peers.home.record import HomeRecord
from perdure.controller.peers.home.watermark import Watermark
from perdure.controller.peers.keyring_check import load_database_keyring, require_unchanged
from perdure.controller.peers.lease import Lease
from perdure.controller.peers.time_scale import load_time_scale
from perdure.controller.runtime.clock import REAL_TIME, Clock, ScaledClock, TimeScale
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.runtime.security.peer_address import peer_address
from perdure.controller.runtime.security.tls import Tls
from perdure.controller.store.records import facts, incarnations


@dataclass(frozen=True)
class Membership:
    """This process among the controllers of its database."""

    controller_id: str  # the same for all of them
    time_scale: TimeScale  # from `clock` to the wall clock
    clock: Clock
    lease: Lease
    keyring: Keyring
    watermark: Watermark

    @property
    def owner(self) -> str:
        """The id of this process, under which it owns jobs."""
        return self.lease.owner


def join(
    settings: Settings,
    wall_clock: Clock,
    database: Engine,
    address: str,
    tls: Tls | None = None,
    *,
    speed: float | None,
) -> Membership:
    """Join the controllers of `database`, and take over the lease that a dead process left in this home.

    `database_check` has checked the database. `address`: where this process listens, with this certificate.
    `speed`: of the controller's time, if config.yaml asks for one. Raises SettingsError, and what the database raises.
    """
    with database.begin() as conn:
        controller_id = facts.get_or_create(conn, "controller", uuid.uuid4().hex[:12])
        time_scale = load_time_scale(conn, settings, speed, wall_clock.now())
        known = database_check.begin_if_new(settings, conn)
        watermark, highest = incarnations.advance(conn), incarnations.highest_job_id(conn)
    record = HomeRecord(controller_id, known.current, watermark, wall_clock.now(), highest)
    record.save(settings.home)
    clock = wall_clock if time_scale == REAL_TIME else ScaledClock(time_scale, wall_clock.now)
    alone = settings.is_single_controller
    peer = None if alone else peer_address(settings.host, int(address.rpartition(":")[2]), tls, database.url)
    lease = Lease(database, clock, alone=alone, duration_s=settings.lease_duration_s, speed=time_scale.speed, peer=peer)
    others_live = not alone and lease.live_peers() > 0
    with database.begin() as conn:
        folder = settings.keyring_directory
        keyring = load_database_keyring(folder, conn, is_alone=alone, others_live=others_live)
        keyring = key_rotation.prune(conn, folder, keyring, now=clock.now(), speed=time_scale.speed)
    home_restart.take_over_home(settings.home, lease, address)
    with database.begin() as conn:
        require_unchanged(conn, keyring)
    keyring = replace(keyring, incarnations=known)
    home = Watermark(settings.home, database, wall_clock, record)
    return Membership(controller_id, time_scale, clock, lease, keyring, home)
