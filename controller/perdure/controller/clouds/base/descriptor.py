"""Describes a cloud to the rest of Perdure: one `CloudDescriptor` per cloud, found through an entry point.

A package that adds a cloud declares its descriptor in the entry-point group `perdure.clouds`, under the cloud's name:

    [project.entry-points."perdure.clouds"]
    toy = "toy_cloud:DESCRIPTOR"

The daemon imports the descriptors of all installed clouds, even of those that it does not use. So a module that defines
one imports the cloud's implementation, and its SDK, only inside `build` and the other functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.controller.runtime.clock import REAL_TIME, Clock, TimeScale
from perdure.controller.runtime.config.config_key import ConfigKey
from perdure.controller.runtime.config.limits import DEFAULT_CONCURRENT_CALLS

if TYPE_CHECKING:
    from perdure.controller.clouds.base.protocol import Cloud
    from perdure.controller.clouds.pricing.cache import OfferCache

DEFAULT_POWER_OFF_AFTER_S = 6 * 3600.0


@dataclass(frozen=True)
class BuildContext:
    """What a cloud may need to be built."""

    #: The cloud's section of config.yaml as it was read, without `max_concurrent_calls` and `max_machines`, which
    #: Perdure reads; None without a section.
    section: object
    clock: Clock  #: the controller's
    cache: OfferCache  #: where a cloud with a `PriceList` stores its offers
    local_home: Path  #: a folder for machines on this computer; all controllers that share the database share it
    time_scale: TimeScale = REAL_TIME  #: of `clock`, relative to real time


@dataclass(frozen=True)
class NoticeSource:
    """Where the agent on a machine reads preemption notices."""

    kind: str  #: a key of `perdure.agent.notices.poller.SOURCES`
    endpoint: str | None  #: base URL of the metadata service; None: the machine's PERDURE_METADATA_ENDPOINT
    poll_s: float  #: the pause between two polls


@dataclass(frozen=True)
class HostingSupport:
    """How `perdure controller up` hosts a controller in a cloud that implements `Hosting`."""

    #: `default_store` of the hosted controller; None: as configured, because it has access to the same stores.
    default_store: str | None = None
    #: The file that lists the permissions that `controller up` needs in addition to the controller's own; "" for none.
    permissions_file: str = ""
    #: The machine shares this computer's network, files and Python packages, and needs no region.
    shares_computer: bool = False


@dataclass(frozen=True)
class CloudDescriptor:
    """What Perdure has to know about a cloud without building it."""

    #: The cloud's name: in `infra`, as its section of config.yaml, and as its entry point.
    name: str
    #: Builds the cloud. Called once, if the cloud is configured. Raises SettingsError for an invalid section.
    build: Callable[[BuildContext], Cloud]
    #: Returns the keys of the cloud's section, for the documentation.
    config_keys: Callable[[], Sequence[ConfigKey]] = tuple
    #: The cloud is used without a section, and `NAME: false` turns it off. Other clouds need a section, so that
    #: credentials that happen to be present never cause costs.
    is_default: bool = False
    #: Machines run on the controller's computer. Controllers behind one address, which may run on several computers,
    #: cannot use the cloud unless they share its folder.
    runs_on_controller: bool = False
    #: Machines run elsewhere, so they reach the controller over a network: a loopback address leads them nowhere.
    is_remote: bool = False
    #: Machines are containers of the image that the task names as `docker:…`. On other clouds, the agent runs the
    #: task's container on a machine of the cloud's image.
    runs_containers: bool = False
    #: Returns how many seconds of the controller's time pass per second, from the section; None: real time. Only for
    #: clouds that can simulate time; others run in real time.
    time_speed: Callable[[object], float | None] | None = None
    #: The default of the section's `max_concurrent_calls`.
    max_concurrent_calls: int = DEFAULT_CONCURRENT_CALLS
    #: How long a machine whose workload has ended waits for a controller before it powers off. Only the machine has the
    #: outcome and the end of the log; if they are lost, the job runs again.
    power_off_after_s: float = DEFAULT_POWER_OFF_AFTER_S
    #: Whether a machine that powers itself off is as one that was stopped: only its disk is billed.
    power_off_stops: bool = True
    #: None: the machines of this cloud get no notices from metadata (see also `HasNoticeQueues`).
    notice_source: NoticeSource | None = None
    #: The extra of the perdure package that installs the cloud's SDK; "" for none.
    extra: str = ""
    #: None: `controller up` does not support the cloud.
    hosting: HostingSupport | None = None
