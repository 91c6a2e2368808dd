"""Kubernetes as a `Cloud`. Every call is made once, with a time-out; `faults` classifies failures."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from perdure.controller.clouds.base.account_checks import Finding, Severity
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.notice_queue import NoticeQueue
from perdure.controller.clouds.base.partial_listing import PartialListing
from perdure.controller.clouds.base.protocol import Fault, Instance, LaunchRequest
from perdure.controller.clouds.kubernetes import account_check, faults
from perdure.controller.clouds.kubernetes.api.kubeconfig import Kubeconfig
from perdure.controller.clouds.kubernetes.cluster import Cluster
from perdure.controller.clouds.kubernetes.nodes import offers
from perdure.controller.clouds.kubernetes.nodes.offer_list import OfferList
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.controller.clouds.kubernetes.pods import fuse, launch, machines, names, pod_config
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings, task_options
from perdure.controller.runtime.clock import Clock
from perdure.recovery.market.view import Offer

log = structlog.get_logger(__name__)

NAME = "kubernetes"
MAX_CONCURRENT_CONTEXTS = 16


class KubernetesCloud:
    """A `Cloud` whose regions are the contexts of a kubeconfig."""

    ignores: frozenset[str] = frozenset({"disk_tier"})

    def __init__(
        self, settings: KubernetesSettings, clock: Clock, *, name: str = NAME, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.name = name
        self.settings = settings
        self._clock = clock
        self._kubeconfig = Kubeconfig(environ, [settings.kubeconfig] if settings.kubeconfig else [])
        self._lock = threading.Lock()
        self._clusters: dict[str, Cluster] = {}
        self._offers: dict[str, OfferList] = {}  # by context
        self._watches: dict[str, ContextWatch] = {}  # by context; of the thread that calls `notice_queues`

    # ---- the Cloud protocol ----

    def notes(self) -> Sequence[str]:
        notes = [f"kubernetes.{key}: accepted, but has no effect" for key in self.settings.without_effect()]
        for context in self._known_contexts():
            cluster = self.cluster(context)
            if cluster.nodes_problem:
                notes.append(
                    f"the nodes of {context} cannot be listed, so offers come from kubernetes.node_types and notices "
                    "from pods alone"
                )
            if not cluster.settings.pricing:
                notes.append(f"prices of {context} are those of its nodes' cloud, or estimates: see kubernetes.pricing")
        return notes

    def unusable(self) -> str | None:
        try:
            missing = [context for context in self.contexts() if context not in self._kubeconfig.contexts()]
        except CloudRejected as error:
            return f"{error}: correct the kubeconfig"
        if not self.contexts():
            where = self._kubeconfig.description()
            return f"there is no context in {where}: set kubernetes.kubeconfig, or run the controller in a pod"
        if missing:
            have = ", ".join(self._kubeconfig.contexts()) or "none"
            return f"there is no context {missing[0]!r}: correct kubernetes.allowed_contexts; the kubeconfig has {have}"
        return None

    def offers(self) -> Sequence[Offer]:
        """The offers of all contexts. One that does not answer keeps its last ones."""
        lists = []
        with self._lock:
            for context in self._known_contexts():
                if context not in self._offers:
                    self._offers[context] = self._make_offer_list(context)
                lists.append(self._offers[context])
        return [offer for one in lists for offer in one.offers()]

    def launch(self, request: LaunchRequest) -> Sequence[Instance]:
        cluster = self.cluster(request.offer.region)
        pods = launch.launch(cluster, request)
        launched = [one for pod in pods if (one := machines.to_instance(cluster, self.name, pod)) is not None]
        missing = {names.pod_name(request.owner, rank) for rank in range(request.num_nodes)}
        missing -= {one.id for one in launched}
        return [*launched, *machines.describe(cluster, self.name, sorted(missing))]

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return machines.describe(self.cluster(region), self.name, ids) if ids else []

    def list_owned(self, controller: str) -> Sequence[Instance]:
        listed: list[Instance] = []
        failures: dict[str, Exception] = {}
        contexts = self.contexts()
        with ThreadPoolExecutor(MAX_CONCURRENT_CONTEXTS, thread_name_prefix="kubernetes") as pool:
            calls = [
                pool.submit(lambda at: machines.list_owned(self.cluster(at), self.name, controller), context)
                for context in contexts
            ]
            for context, call in zip(contexts, calls, strict=True):
                try:
                    listed += call.result()
                except Exception as error:  # noqa: BLE001 - a context that is away must hold up no other
                    failures[context] = error
        if failures and len(failures) == len(contexts):
            raise next(iter(failures.values()))
        if failures:
            raise PartialListing(listed, failures)
        return listed

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        machines.terminate(self.cluster(region), ids)

    def classify(self, error: Exception) -> Fault:
        return faults.classify(error)

    # ---- the optional protocols ----

    def notice_queues(self) -> Sequence[NoticeQueue]:
        """The watches of all contexts in use. One that is added to the kubeconfig gets its watch as soon as it is."""
        try:
            defined = self._kubeconfig.contexts()
        except CloudRejected:
            defined = ()
        for context in self._known_contexts():
            if context in defined and context not in self._watches:
                self._watches[context] = ContextWatch(self.name, self.cluster(context))
        return list(self._watches.values())

    def interrupt(self, region: str, instance_id: str, *, notice_s: float | None) -> None:
        """Evict the pod with that grace, as an interruption of its node does. Raises ApiError for one that ended."""
        cluster = self.cluster(region)
        pod = cluster.find("pods", instance_id) if names.anchor_of(instance_id) else None
        if pod is None or machines.current_status(cluster, pod).ended_at is not None:
            raise CloudRejected("NoSuchPod", f"there is no pod {instance_id!r} in {region} that runs")
        grace_s = 0 if notice_s is None else math.ceil(notice_s)
        machines.evict(cluster, pod, grace_s)

    def why_waiting(self, controller: str, job_id: int, task: int) -> str | None:
        """Why pods of the task wait for admission, a node or their image, as the watches of all contexts saw last."""
        with self._lock:
            clusters = list(self._clusters.values())
        reasons = (cluster.wait_reasons.of(controller, job_id, task) for cluster in clusters)
        return next(filter(None, reasons), None)

    def check_settings(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Check a task's `config.kubernetes`. Returns warnings. Raises SectionError."""
        for context in self._known_contexts() or [""]:
            task_options(self.settings.of_context(context).options, settings)
        config = settings.get("pod_config")
        return pod_config.repaired(config)[1] if isinstance(config, Mapping) else []

    def mount_problem(
        self, region: str | None, settings: Mapping[str, Any], *, mode: str, num_nodes: int
    ) -> str | None:
        """None if the pods of that context, or of every context, can mount; one node alone needs no FUSE to cache."""
        if mode == "MOUNT_CACHED" and num_nodes == 1:
            return None
        for context in [region] if region else self._known_contexts():
            cluster = self.cluster(context)
            options = task_options(cluster.settings.options, settings)
            is_offered = cluster.settings.fuse and cluster.may_use_fuse and not cluster.is_restricted
            if is_offered and fuse.device_of(cluster.known_nodes(), is_needed=True):
                continue
            if not pod_config.grants_fuse(options.pod_config):
                use = "MOUNT needs" if mode == "MOUNT" else "MOUNT_CACHED of several nodes needs"
                return (
                    f"pods of {context} have no FUSE, which {use}: its nodes have no device plugin for /dev/fuse, and "
                    "kubernetes.pod_config grants neither a device of one nor `privileged`"
                )
        return None

    def check(self) -> Sequence[Finding]:
        if why := self.unusable():
            return [Finding("credentials", Severity.ERROR, why)]
        return account_check.findings([self.cluster(context) for context in self.contexts()])

    # ---- private ----

    def contexts(self) -> Sequence[str]:
        """The contexts in use: the configured ones, all, or the current one."""
        allowed = self.settings.allowed_contexts
        if allowed is None:
            return self._kubeconfig.contexts()
        if allowed:
            return allowed
        current = self._kubeconfig.current()
        return [current] if current else []

    def cluster(self, context: str) -> Cluster:
        with self._lock:
            if context not in self._clusters:
                settings = self.settings.of_context(context)
                self._clusters[context] = Cluster(context, self._kubeconfig, settings, self._clock)
            return self._clusters[context]

    def _known_contexts(self) -> list[str]:
        try:
            return list(self.contexts())
        except CloudRejected:
            return []

    def _make_offer_list(self, context: str) -> OfferList:
        def read_offers() -> Sequence[Offer]:
            cluster = self.cluster(context)
            nodes = [*cluster.nodes(), *cluster.possible_nodes()]
            return offers.offers_of(self.name, context, nodes, cluster.settings)

        def on_error(error: Exception) -> None:
            fault = self.classify(error)
            log.warning("kubernetes.no_offers", context=context, code=fault.code, error=fault.message)

        return OfferList(read_offers, on_error, self._clock)
