"""The local cloud: machines in three zones, all on this computer. The package's docstring explains its two halves."""

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

from perdure.agent.storage.fuse import fuse_problem
from perdure.controller.clouds.base.protocol import (
    Disk,
    Fault,
    HostRequirements,
    Instance,
    InstanceState,
    LaunchRequest,
    StoppedMachineLost,
)
from perdure.controller.clouds.bootstrap.artifacts import find_rclone
from perdure.controller.clouds.local import launch_errors, layout, locks
from perdure.controller.clouds.local.host import launcher
from perdure.controller.clouds.local.host.host_process import Prepared
from perdure.controller.clouds.local.instances import InstanceRecord, InstanceStore
from perdure.controller.clouds.local.launch_errors import LocalCloudError
from perdure.controller.clouds.local.machine import isolation, machine_spec, process_tree
from perdure.controller.clouds.local.machine.isolation import Isolation
from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.local.zones import Zones
from perdure.controller.runtime.clock import REAL_TIME, Clock, TimeScale
from perdure.controller.runtime.failpoints import failpoint
from perdure.recovery.market.view import Market, Offer

PRUNE_INTERVAL_S = 600.0
LAUNCH_LOCK = "lock"
STATE_DISKS = "controllers"  # a folder per controller with its own machine; it outlives the machine
_NOT_MOUNTED = "buckets cannot be mounted (local ones are linked instead; others are copied or uploaded)"


class LocalCloud:
    """A `Cloud` that is `Interruptible`, `Stoppable` and `Hosting`. Several processes may share one `home`
    (`PERDURE_HOME`).

    `artifacts`: the folder of files named by their sha256, from which every machine runs
    `bootstrap.artifacts["agent"]`; default `home/artifacts`. `time_scale`: of `clock`; hosts live in real time.
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
        time_scale: TimeScale = REAL_TIME,
    ) -> None:
        self.name = name
        self.settings = settings
        self._clock = clock
        self._time_scale = time_scale
        self._playback = settings.capacity_trace.playback(time_scale.since) if settings.capacity_trace else None
        home = home.expanduser().resolve()
        self._folder = home / "local"
        self._shared = machine_spec.SharedFolders(home, artifacts or home / "artifacts", self._folder / "buckets")
        self._instances = InstanceStore(name, self._folder / "instances")
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
        """Returns when every machine's first process runs; earlier if another call with the same token is running."""
        return self._launch(request)

    def _launch(self, request: LaunchRequest, needs: HostRequirements | None = None) -> Sequence[Instance]:
        kind = self.isolation()
        ids = [instance_id(request.owner.token, rank) for rank in range(request.num_nodes)]
        try:
            prepared = self._prepare(request, ids, kind, needs)
            failpoint("local_machines.prepared")
            launcher.start_hosts(prepared)
        except (LocalCloudError, launcher.HostStartError) as error:
            self._undo_launch(ids)
            if isinstance(error, LocalCloudError):
                raise
            raise LocalCloudError("InternalError", f"starting a machine: {error}", zone=request.offer.zone) from error
        return [self._describe(record) for record in map(self._instances.get, ids) if record]

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return [self._describe(record) for record in self._find(region, ids)]

    def list_owned(self, controller: str) -> Sequence[Instance]:
        self._prune_if_due()
        living = (self._describe(record) for record in self._instances.living())
        return [instance for instance in living if instance.owner.controller == controller]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        for record in self._find(region, ids):
            if not record.is_gone:
                with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                    layout.write_command(str(record.path), layout.TERMINATE, {})
                if record.is_halted:
                    self._instances.end_halted(record)

    def classify(self, error: Exception) -> Fault:
        return launch_errors.classify(error)

    # ---- the optional protocols ----

    def stop(self, region: str, ids: Sequence[str]) -> None:
        for record in self._find(region, ids):
            if not (record.is_gone or record.is_halted):
                with contextlib.suppress(FileNotFoundError):
                    layout.write_command(str(record.path), layout.STOP, {})

    def start(self, request: LaunchRequest, ids: Sequence[str]) -> Sequence[Instance]:
        prepared: list[Prepared] = []
        try:
            self._prepare_halted(request, ids, prepared)
            launcher.start_hosts(prepared)
        except launcher.HostStartError as error:
            launcher.end_and_wait([machine.path for machine in prepared], layout.STOP)
            raise LocalCloudError("InternalError", f"starting a machine: {error}", zone=request.offer.zone) from error
        return [self._describe(record) for record in map(self._instances.get, ids) if record]

    def public_addresses(self, region: str, ids: Sequence[str]) -> Mapping[str, str]:
        """Machines have addresses of this computer, which reaches all of their ports anyway."""
        return {record.path.name: record.ip for record in self._find(region, ids) if not record.is_gone}

    def close_ports(self, region: str, name: str) -> None:
        """Nothing was opened."""

    def disk_price_per_hour(self, offer: Offer, disk_gib: int | None, disk_tier: str | None) -> float:  # noqa: ARG002
        """A disk is a folder of this computer."""
        return 0.0

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:
        """The deadline is a whole second, at least `notice_s` away. Raises LocalCloudError for an unknown machine."""
        living = [one for one in self._find(region, [instance_id]) if not (one.is_gone or one.is_halted)]
        if not living:
            raise LocalCloudError("InvalidInstanceID.NotFound", f"there is no machine {instance_id!r} in {region}")
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile, which is as good
            layout.write_command(str(living[0].path), layout.INTERRUPT, {"notice_s": notice_s})

    def environment_settings(self) -> Mapping[str, str]:
        """Resolved here: a local machine cannot see the folder of its own machines, nor test its isolation."""
        return {"directory": str(self._folder.parent), "isolation": self.isolation()}

    def state_disk(self, name: str, *, region: str, zone: str, gib: int) -> Disk:  # noqa: ARG002
        """A folder on this computer; `region` and `gib` are ignored."""
        folder = self._shared.home / STATE_DISKS / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Disk(str(folder), zone, gib)

    def launch_host(self, request: LaunchRequest, needs: HostRequirements) -> Instance:
        if self.isolation() == process_tree.PROCESSES:
            why = "a controller's machine needs namespaces, which are unavailable here: run as root"
            raise LocalCloudError("Unsupported", why, zone=request.offer.zone)
        program = Path(needs.home) / machine_spec.INSTALLER
        with open(os.open(program, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(needs.program)
        return self._launch(request, needs)[0]

    def attach_disk(self, instance: Instance, disk: Disk) -> str | None:  # noqa: ARG002
        """Machines share this computer's network: the loopback address outlives every machine."""
        return "127.0.0.1" if instance.state is InstanceState.RUNNING else None

    def release(self, name: str, region: str) -> None:
        """Nothing of the local cloud is billed."""

    def remove_disk(self, name: str, region: str) -> None:  # noqa: ARG002
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._shared.home / STATE_DISKS / name)

    def metadata_endpoint(self, instance_id: str) -> str | None:
        """Base URL of the instance's metadata service (EC2's IMDSv2); None while there is none."""
        record = self._instances.get(instance_id)
        return record.state.get("metadata") if record and not record.is_gone else None

    def buckets_on_node(self) -> str:
        """Where a machine finds the folder of buckets, which are `PERDURE_HOME/local/buckets/<name>` here."""
        return machine_spec.buckets_on_node(self._shared, self.isolation())

    def isolation(self) -> str:
        """How far machines are apart from this computer: "overlay", "bind" or "processes"."""
        return self._detect_isolation().kind

    def notes(self) -> Sequence[str]:
        """What a user should know of this cloud here, in sentences."""
        accelerators, problem = ", ".join(self.settings.accelerators), self._zones.problem()
        return [
            *([problem] if problem else []),
            "sizes are labels: a machine's vCPUs and memory are not limited",
            *([f"accelerators are simulated: {accelerators}"] if accelerators else []),
            *self._trace_notes(),
            *self._detect_isolation().notes,
            *([f"{_NOT_MOUNTED}: {why}"] if (why := self._mount_problem()) else []),
        ]

    def _trace_notes(self) -> list[str]:
        if self._playback is None:
            return []
        hour, num_hours = self._playback.position_h(self._clock.now())
        speed = self._time_scale.speed
        return [f"spot capacity follows a trace, at hour {hour:.0f} of {num_hours:.0f}, at {speed:g} times real time"]

    def _describe(self, record: InstanceRecord) -> Instance:
        instance = self._instances.describe(record)
        launched_at, ended_at = (
            at and self._time_scale.from_wall(at) for at in (instance.launched_at, instance.ended_at)
        )
        return replace(instance, launched_at=launched_at, ended_at=ended_at)

    def _mount_problem(self) -> str | None:
        """Why a machine cannot mount a bucket; None if it can."""
        if find_rclone() is None:
            return "rclone 1.68 or newer is not installed: install it beside Perdure, or on PATH"
        return fuse_problem(in_user_namespace=self.isolation() == process_tree.BIND and os.geteuid() != 0)

    # ---- private ----

    def _prepare(
        self, request: LaunchRequest, ids: Sequence[str], kind: str, needs: HostRequirements | None
    ) -> list[Prepared]:
        """Create directories for the machines of the request that were never started, if the zone has capacity."""
        prepared: list[Prepared] = []
        with self._launch_lock():
            living = self._instances.living()
            missing = [rank for rank, id in enumerate(ids) if (r := self._instances.get(id)) is None or r.was_abandoned]
            if not missing:
                return prepared
            if needs is None:
                self._require_agent(request)
            slots = self._allocate(request, len(missing), living)
            try:
                for rank, slot in zip(missing, slots, strict=True):
                    self._instances.forget(ids[rank])
                    address = machine_spec.next_address(self._folder, {record.ip for record in living})
                    state, spec = machine_spec.build(
                        request, rank, ids[rank], address, kind, self._shared, self._wall_now()
                    )
                    if needs is not None:
                        machine_spec.make_controller_host(spec, needs, self._shared, ids[rank])
                    if slot is not None:
                        state["instance"]["slot"] = slot
                        spec["preemption"] = self._scheduled_preemption(request.offer.zone, slot)
                    prepared.append(launcher.prepare(self._instances.folder / ids[rank], state, spec))
            except BaseException:
                for machine in prepared:
                    os.close(machine.lock)
                raise
        return prepared

    def _prepare_halted(self, request: LaunchRequest, ids: Sequence[str], prepared: list[Prepared]) -> None:
        """Add those of the machines to `prepared` that do not run, if the zone has capacity."""
        with self._launch_lock():
            records = [self._instances.get(id) for id in ids]
            if any(record is None or record.is_gone for record in records):
                raise StoppedMachineLost(", ".join(ids))
            self._require_agent(request)
            halted = [(rank, one) for rank, one in enumerate(records) if one and one.is_halted and not one.is_alive]
            if not halted:
                return
            self._allocate(request, len(halted), self._instances.living())
            try:
                for rank, record in halted:
                    state, spec = machine_spec.build(
                        request, rank, ids[rank], record.ip, self.isolation(), self._shared, self._wall_now()
                    )
                    before = {name: record.state.get(name) for name in ("launched_at", "ended_at", "reason")}
                    state = {**state, **before, "state": layout.HALTED}
                    prepared.append(launcher.prepare_again(record.path, state, spec))
            except BaseException:
                for machine in prepared:
                    os.close(machine.lock)
                raise

    def _wall_now(self) -> float:
        return self._time_scale.to_wall(self._clock.now())

    def _scheduled_preemption(self, zone: str, slot: int) -> dict[str, float] | None:
        """When the trace preempts a machine in that slot, and the length of its notice, both in wall-clock seconds."""
        assert self._playback is not None
        preempted_at = self._playback.preempted_at(zone, slot, self._clock.now())
        if preempted_at == float("inf"):
            return None
        return {
            "at": self._time_scale.to_wall(preempted_at),
            "notice_s": self._playback.trace.notice_s / self._time_scale.speed,
        }

    def _allocate(self, request: LaunchRequest, count: int, living: Sequence[InstanceRecord]) -> Sequence[int | None]:
        """A slot in the zone's trace for each machine; None for one that is never preempted. Raises LocalCloudError."""
        offer, zone = request.offer, self._zones.get(request.offer.zone)
        if zone is None or offer.key not in {available.key for available in self._zones.offers()}:
            raise LocalCloudError("Unsupported", f"{offer.key} is not offered", zone=offer.zone)
        if (error := zone.launch_error) and error.market in (None, offer.market):
            raise LocalCloudError(error.code, error.message, zone=zone.name, market=error.market)
        used = sum(record.zone == zone.name and not (record.is_halted and not record.is_alive) for record in living)
        if zone.capacity is not None and used + count > zone.capacity:
            text = f"the zone has room for {zone.capacity} machines, {used} are in use, and {count} more were requested"
            raise LocalCloudError("InsufficientInstanceCapacity", text, zone=zone.name)
        if self._playback is None or offer.market is Market.ON_DEMAND:
            return [None] * count
        held = {slot for r in living if r.zone == zone.name and (slot := r.state["instance"].get("slot"))}
        slots = self._playback.free(zone.name, count, held, self._clock.now())
        if slots is None:
            text = "no capacity in the trace"
            raise LocalCloudError("UnfulfillableCapacity", text, zone=zone.name, market=Market.SPOT)
        return slots

    def _require_agent(self, request: LaunchRequest) -> None:
        agent = self._shared.artifacts / request.bootstrap.artifacts["agent"]
        if not agent.is_file():
            raise LocalCloudError("InternalError", f"{agent} is missing: machines run it", zone=request.offer.zone)

    def _undo_launch(self, ids: Sequence[str]) -> None:
        """Remove all traces of the launch, so that one with the same token starts from scratch."""
        launcher.end_and_wait([record.path for record in map(self._instances.get, ids) if record])
        for id in ids:
            self._instances.forget(id)

    def _find(self, region: str, ids: Sequence[str]) -> Iterator[InstanceRecord]:
        for record in map(self._instances.get, ids):
            if record and record.state["instance"]["region"] == region:
                yield record

    def _detect_isolation(self) -> Isolation:
        with self._isolation_lock:
            if self._isolation is None:
                self._make_folders()
                plan = machine_spec.rootfs_plan(self._shared, "perdure-probe", "127.0.0.1")
                self._isolation = isolation.detect(self.settings.isolation, plan, self._folder)
            return self._isolation

    def _make_folders(self) -> None:
        for folder in (self._instances.folder, self._shared.buckets, self._shared.artifacts):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "not writable", str(folder))

    @contextlib.contextmanager
    def _launch_lock(self) -> Iterator[None]:
        """Serializes, over all processes, counting a zone's machines and creating directories for new ones."""
        lock = locks.hold(str(self._folder / LAUNCH_LOCK))
        try:
            yield
        finally:
            os.close(lock)

    def _prune_if_due(self) -> None:
        now = self._clock.now()
        if now - self._pruned_at >= PRUNE_INTERVAL_S:
            self._pruned_at = now
            self._instances.prune(self._time_scale.to_wall(now))


def instance_id(token: str, rank: int) -> str:
    """The instance's name. It follows from the token, so that a repeated launch finds the same directories."""
    return f"local-{hashlib.sha256(token.encode()).hexdigest()[:12]}-{rank}"
