"""The local cloud: this computer, sold as machines in three zones. See the package's docstring for its halves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perdure.agent.fuse import fuse_problem
from perdure.controller.bootstrap.artifacts import find_rclone
from perdure.controller.clock import REAL_TIME, Clock, Pace
from perdure.controller.clouds.base import Disk, Fault, Instance, InstanceState, LaunchRequest, Standing
from perdure.controller.clouds.local import blueprint, isolation, launcher, layout, locks, machine, refusals
from perdure.controller.clouds.local.instances import Instances, Record
from perdure.controller.clouds.local.isolation import Isolation
from perdure.controller.clouds.local.refusals import LocalRefusal
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.local.zones import Zones
from perdure.controller.crashpoints import reach
from perdure.recovery.market import Market, Offer

PRUNE_EVERY_S = 600.0
GATE = "lock"
STATES = "controllers"  # of controllers on machines of their own: a folder each, which outlives the machine
_NOT_MOUNTED = "buckets can not be mounted (local ones are linked instead, others can be copied)"


class LocalCloud:
    """A `Cloud`, and `Interruptible`. Several processes may share one `home` (`PERDURE_HOME`).

    `artifacts`: the folder of files named by their sha256, of which every machine runs
    `bootstrap.artifacts["agent"]`; default `home/artifacts`. `pace`: of `clock` beside the world, in which hosts live.
    """

    ignores = frozenset({"disk_gib", "disk_tier", "network_tier", "image_id"})

    def __init__(
        self,
        home: Path,
        settings: LocalSettings,
        clock: Clock,
        *,
        artifacts: Path | None = None,
        name: str = "local",
        pace: Pace = REAL_TIME,
    ) -> None:
        self.name = name
        self.settings = settings
        self._clock = clock
        self._pace = pace
        self._playback = settings.capacity_trace.played(pace.since) if settings.capacity_trace else None
        home = home.expanduser().resolve()
        self._folder = home / "local"
        self._shared = blueprint.Shared(home, artifacts or home / "artifacts", self._folder / "buckets")
        self._instances = Instances(name, self._folder / "instances")
        self._zones = Zones(name, settings, self._folder / "zones.json", clock=clock, playback=self._playback)
        self._isolation: Isolation | None = None
        self._isolation_lock = threading.Lock()
        self._pruned_at = clock.now()

    # ---- the Cloud protocol ----

    def unusable(self) -> str | None:
        if not (sys.platform == "linux" and hasattr(os, "pidfd_open")):
            return "the local cloud needs Linux 5.3 or newer: use another cloud here"
        try:
            self._make_folders()
        except OSError as error:
            return f"{error.filename}: {error.strerror}: make the folder writable, or set PERDURE_HOME to one that is"
        return None

    def offers(self) -> Sequence[Offer]:
        return self._zones.offers()

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        """Returns when every machine's first process runs; beside another call with the same token, perhaps before."""
        return self._launch(request)

    def _launch(self, request: LaunchRequest, standing: Standing | None = None) -> Sequence[Instance]:
        kind = self.isolation()
        ids = [instance_id(request.owner.token, rank) for rank in range(request.num_nodes)]
        try:
            prepared = self._prepare(request, ids, kind, standing)
            reach("local_machines.prepared")
            launcher.start(prepared)
        except (LocalRefusal, launcher.HostFailed) as refused:
            self._give_back(ids)
            if isinstance(refused, LocalRefusal):
                raise
            raise LocalRefusal("InternalError", f"starting a machine: {refused}", zone=request.offer.zone) from refused
        return [self._describe(record) for record in map(self._instances.get, ids) if record]

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return [self._describe(record) for record in self._find(region, ids)]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        self._prune_now_and_then()
        living = (self._describe(record) for record in self._instances.living())
        return [instance for instance in living if instance.owner.controller == controller]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        for record in self._find(region, ids):
            if not record.is_gone:
                with contextlib.suppress(FileNotFoundError):  # gone since
                    layout.give_order(str(record.path), layout.TERMINATE, {})

    def classify(self, error: Exception) -> Fault:
        return refusals.classify(error)

    # ---- what only this cloud can do ----

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:
        """Raises LocalRefusal if no such machine lives. The deadline is a whole second, `notice_s` away or more."""
        living = [record for record in self._find(region, [instance_id]) if not record.is_gone]
        if not living:
            raise LocalRefusal("InvalidInstanceID.NotFound", f"no machine {instance_id!r} lives in {region}")
        with contextlib.suppress(FileNotFoundError):  # gone since: as good as taken
            layout.give_order(str(living[0].path), layout.INTERRUPT, {"notice_s": notice_s})

    def found_here(self) -> Mapping[str, str]:
        return {}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:  # noqa: ARG002
        """A folder of this computer's; `region` and `gib` mean nothing."""
        folder = self._shared.home / STATES / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Disk(str(folder), zone, gib)

    def stand(self, request: LaunchRequest, needs: Standing) -> Instance:
        if self.isolation() == machine.PROCESSES:
            why = "a controller's machine needs namespaces, which this computer does not give: run as root"
            raise LocalRefusal("Unsupported", why, zone=request.offer.zone)
        program = Path(needs.home) / blueprint.CARETAKER
        with open(os.open(program, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(needs.program)
        return self._launch(request, needs)[0]

    def settle(self, instance: Instance, disk: Disk) -> str | None:  # noqa: ARG002
        """Machines share this computer's addresses: one that outlives the machine is told."""
        return "127.0.0.1" if instance.state is InstanceState.RUNNING else None

    def leave(self, name: str, region: str) -> None:
        """There is nothing to give back."""

    def remove_disk(self, name: str, region: str) -> None:  # noqa: ARG002
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._shared.home / STATES / name)

    def metadata_endpoint(self, instance_id: str) -> str | None:
        """Base URL of the instance's metadata service (EC2's IMDSv2); None while there is none."""
        record = self._instances.get(instance_id)
        return record.state.get("metadata") if record and not record.is_gone else None

    def buckets_on_node(self) -> str:
        """Where a machine finds the folder of buckets, which are `PERDURE_HOME/local/buckets/<name>` here."""
        return blueprint.buckets_on_node(self._shared, self.isolation())

    def isolation(self) -> str:
        """How far machines are apart from this computer: "overlay", "bind" or "processes"."""
        return self._find_isolation().kind

    def notes(self) -> Sequence[str]:
        """What a user should know of this cloud here, in sentences."""
        accelerators, problem = ", ".join(self.settings.accelerators), self._zones.problem()
        return [
            *([problem] if problem else []),
            "sizes are labels: nothing holds a machine to its vCPUs and memory",
            *([f"accelerators are pretended: {accelerators}"] if accelerators else []),
            *self._trace_notes(),
            *self._find_isolation().notes,
            *([f"{_NOT_MOUNTED}: {why}"] if (why := self._mount_problem()) else []),
        ]

    def _trace_notes(self) -> list[str]:
        if self._playback is None:
            return []
        at_h, of_h = self._playback.at_h(self._clock.now())
        speed = self._pace.speed
        return [f"spot capacity follows a trace, at hour {at_h:.0f} of {of_h:.0f}; time runs {speed:g} times as fast"]

    def _describe(self, record: Record) -> Instance:
        found = self._instances.describe(record)
        launched_at, ended_at = (at and self._pace.of_world(at) for at in (found.launched_at, found.ended_at))
        return replace(found, launched_at=launched_at, ended_at=ended_at)

    def _mount_problem(self) -> str | None:
        """Why a machine can not mount a bucket; None when it can."""
        if find_rclone() is None:
            return "rclone 1.68 or newer is not installed: install it beside Perdure, or on PATH"
        return fuse_problem(in_user_namespace=self.isolation() == machine.BIND and os.geteuid() != 0)

    # ---- private ----

    def _prepare(
        self, request: LaunchRequest, ids: Sequence[str], kind: str, standing: Standing | None
    ) -> list[launcher.Prepared]:
        """Directories for those of the request's machines that were never started, if the zone has room for them."""
        prepared: list[launcher.Prepared] = []
        with self._gate():
            living = self._instances.living()
            missing = [rank for rank, id in enumerate(ids) if (r := self._instances.get(id)) is None or r.was_abandoned]
            if not missing:
                return prepared
            self._require_agent(request, is_node=standing is None)
            places = self._admit(request, len(missing), living)
            try:
                for rank, place in zip(missing, places, strict=True):
                    self._instances.forget(ids[rank])
                    address = blueprint.next_address(self._folder, {record.ip for record in living})
                    state, spec = blueprint.draw(
                        request, rank, ids[rank], address, kind, self._shared, self._world_now()
                    )
                    if standing is not None:
                        blueprint.stand(spec, standing, self._shared, ids[rank])
                    if place is not None:
                        state["instance"]["place"] = place
                        spec["fate"] = self._fate(request.offer.zone, place)
                    prepared.append(launcher.prepare(self._instances.folder / ids[rank], state, spec))
            except BaseException:
                for one in prepared:
                    os.close(one.lock)
                raise
        return prepared

    def _world_now(self) -> float:
        return self._pace.in_world(self._clock.now())

    def _fate(self, zone: str, place: int) -> dict[str, float] | None:
        """When the trace takes a machine in that place, and how long before it is told: the world's seconds."""
        assert self._playback is not None
        taken_at = self._playback.taken_at(zone, place, self._clock.now())
        if taken_at == float("inf"):
            return None
        return {
            "taken_at": self._pace.in_world(taken_at),
            "notice_s": self._playback.trace.notice_s / self._pace.speed,
        }

    def _admit(self, request: LaunchRequest, count: int, living: Sequence[Record]) -> Sequence[int | None]:
        """The place of each machine in the zone's trace; None where nothing takes it. Raises LocalRefusal."""
        offer, zone = request.offer, self._zones.get(request.offer.zone)
        if zone is None or offer.key not in {sold.key for sold in self._zones.offers()}:
            raise LocalRefusal("Unsupported", f"{offer.key} is not sold", zone=offer.zone)
        if zone.refuse and zone.refuse.market in (None, offer.market):
            raise LocalRefusal(zone.refuse.code, zone.refuse.message, zone=zone.name, market=zone.refuse.market)
        used = sum(record.zone == zone.name for record in living)
        if zone.capacity is not None and used + count > zone.capacity:
            text = f"{used} of {zone.capacity} machines are taken, {count} more do not fit"
            raise LocalRefusal("InsufficientInstanceCapacity", text, zone=zone.name)
        if self._playback is None or offer.market is Market.ON_DEMAND:
            return [None] * count
        held = {place for r in living if r.zone == zone.name and (place := r.state["instance"].get("place"))}
        places = self._playback.free(zone.name, count, held, self._clock.now())
        if places is None:
            text = "no capacity in the trace"
            raise LocalRefusal("UnfulfillableCapacity", text, zone=zone.name, market=Market.SPOT)
        return places

    def _require_agent(self, request: LaunchRequest, *, is_node: bool) -> None:
        agent = self._shared.artifacts / request.bootstrap.artifacts["agent"]
        if is_node and not agent.is_file():
            zone = request.offer.zone
            raise LocalRefusal("InternalError", f"{agent} is missing: it is what a machine runs", zone=zone)

    def _give_back(self, ids: Sequence[str]) -> None:
        """Nothing of this launch is left, so that one with the same token begins anew."""
        launcher.give_back([record.path for record in map(self._instances.get, ids) if record])
        for id in ids:
            self._instances.forget(id)

    def _find(self, region: str, ids: Sequence[str]) -> Iterator[Record]:
        for record in map(self._instances.get, ids):
            if record and record.state["instance"]["region"] == region:
                yield record

    def _find_isolation(self) -> Isolation:
        with self._isolation_lock:
            if self._isolation is None:
                self._make_folders()
                self._isolation = isolation.find(
                    self.settings.isolation, blueprint.plan(self._shared, "perdure-try", "127.0.0.1"), self._folder
                )
            return self._isolation

    def _make_folders(self) -> None:
        for folder in (self._instances.folder, self._shared.buckets, self._shared.artifacts):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "not writable", str(folder))

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """One at a time, over all processes: counting a zone's machines and making directories for more."""
        lock = locks.hold(str(self._folder / GATE))
        try:
            yield
        finally:
            os.close(lock)

    def _prune_now_and_then(self) -> None:
        now = self._clock.now()
        if now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            self._instances.prune(self._pace.in_world(now))


def instance_id(token: str, rank: int) -> str:
    """The name is the idempotency: the same launch finds the same directories."""
    return f"local-{hashlib.sha256(token.encode()).hexdigest()[:12]}-{rank}"
