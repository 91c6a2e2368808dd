"""One context: its client, its settings, and what is known of its nodes and pods. Every method is one or two calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.errors import ApiError
from perdure.controller.clouds.kubernetes.api.kubeconfig import ClusterAccess, Kubeconfig
from perdure.controller.clouds.kubernetes.api.shared_list import SharedList
from perdure.controller.clouds.kubernetes.api.watch import Object, list_objects
from perdure.controller.clouds.kubernetes.nodes import capacity, markets, node_pools, offers
from perdure.controller.clouds.kubernetes.nodes.node_view import NodeView, reduce_node, view_of
from perdure.controller.clouds.kubernetes.pods import names
from perdure.controller.clouds.kubernetes.settings import ContextSettings
from perdure.controller.clouds.kubernetes.waits import kueue
from perdure.controller.clouds.kubernetes.waits.scale_ups import ScaleUps
from perdure.controller.clouds.kubernetes.waits.wait_reasons import WaitReasons
from perdure.controller.runtime.clock import Clock
from perdure.recovery.reasons import Reason

NODES = "/api/v1/nodes"
NODES_AGE_S = 15.0
POOLS_AGE_S = 60.0
NO_POOLS_AGE_S = 600.0  # between two questions for NodePools where there are none, or no right to see them
_MAX_REMEMBERED = 10_000
_TERMINATING_S = 3600.0


class Cluster:
    """A context. Thread-safe."""

    def __init__(self, context: str, kubeconfig: Kubeconfig, settings: ContextSettings, clock: Clock) -> None:
        self.context = context
        self.settings = settings
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._lock = threading.Lock()
        self._client: tuple[ClusterAccess, ApiClient] | None = None
        self._nodes: tuple[float, list[NodeView]] | None = None
        self._waiting: dict[str, tuple[str, float]] = {}  # pod → what for, and since when; the oldest first
        self._ends: dict[str, tuple[Reason, str]] = {}
        self._terminating: dict[str, float] = {}
        self._pools: tuple[float, list[Object]] | None = None  # (when to read them again, Karpenter's NodePools)
        #: What autoscalers say about pods that wait.
        self.scale_ups = ScaleUps(self._list_events, self.now)
        #: Why pods wait, for users.
        self.wait_reasons = WaitReasons(self._read_workloads, self._list_events, self.now)
        #: The pods that hold room: of the cluster, or of the namespace if the caller may see no others.
        self.room_takers = SharedList(self._list_room_takers, self.now)
        #: The pods of launches that have begun, by their token, until they exist. Guarded by `room_lock`.
        self.reservations: dict[str, list[Object]] = {}
        self.room_lock = threading.Lock()
        #: Returns the nodes of a running watch; None if there is none.
        self.watched_nodes: Callable[[], list[Object] | None] = lambda: None
        #: The namespace admits only pods that run without root. Learned from a rejection.
        self.is_restricted = False
        #: Pods may have user namespaces, and SYS_ADMIN in them. Learned from a pod without, or from a rejection.
        self.may_use_fuse = True
        #: Pods may have files and rights of their node, for fast networks. Learned from a rejection.
        self.may_use_host = True
        #: Why the nodes cannot be listed, if the caller lacks the right to.
        self.nodes_problem: str | None = None

    @property
    def client(self) -> ApiClient:
        """The client with the kubeconfig as it is now. Raises CloudRejected."""
        access = self._kubeconfig.access(self.context)
        with self._lock:
            if self._client is None or self._client[0] is not access:
                self._client = (access, ApiClient(access))
            return self._client[1]

    @property
    def namespace(self) -> str:
        return self.settings.namespace or self.client.access.namespace or "default"

    def path(self, resource: str, name: str = "", *, sub: str = "") -> str:
        """The path of a resource of the core API in the namespace."""
        parts = [f"/api/v1/namespaces/{self.namespace}/{resource}", name, sub]
        return "/".join(filter(None, parts))

    def now(self) -> float:
        return self._clock.now()

    # ---- nodes ----

    def nodes(self, max_age_s: float = NODES_AGE_S) -> list[NodeView]:
        """The nodes, from a watch or a list of that age; empty without the right to list them. Raises ApiError."""
        now = self._clock.now()
        with self._lock:
            known = self._nodes
        if known is not None and now - known[0] < max_age_s:
            return known[1]
        watched = self.watched_nodes()
        listed = watched if watched is not None else self._list_nodes()
        marks = markets.marks(self.settings.spot_label)
        views = [view_of(node, marks) for node in listed]
        with self._lock:
            self._nodes = (now, views)
        return views

    def known_nodes(self) -> list[NodeView]:
        """The nodes as they were last read; empty before. Never waits for the cluster."""
        with self._lock:
            return self._nodes[1] if self._nodes is not None else []

    def _list_nodes(self) -> list[Object]:
        try:
            listed, _ = list_objects(self.client, NODES, reduce=reduce_node)
        except ApiError as error:
            if error.status != 403:
                raise
            self.nodes_problem = error.message
            return []
        self.nodes_problem = None
        return listed

    def possible_nodes(self) -> list[NodeView]:
        """The nodes that an autoscaler would add: those of the configuration, and of Karpenter's NodePools."""
        known = markets.marks(self.settings.spot_label)
        existing = self.known_nodes()
        return [*offers.possible_nodes(self.settings), *node_pools.nodes_of(self._node_pools(), existing, known)]

    def _node_pools(self) -> list[Object]:
        if self.settings.autoscaler not in (None, "karpenter"):
            return []
        now = self._clock.now()
        with self._lock:
            if self._pools is not None and now < self._pools[0]:
                return self._pools[1]
        try:
            pools, age_s = list_objects(self.client, node_pools.PATH)[0], POOLS_AGE_S
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            pools, age_s = [], NO_POOLS_AGE_S
        with self._lock:
            self._pools = (now + age_s, pools)
        return pools

    def find_node(self, name: str) -> Object | None:
        """The node as it is now; None if it does not exist, or the caller may not see it."""
        watched = self.watched_nodes()
        if watched is not None:
            return next((node for node in watched if node["metadata"]["name"] == name), None)
        try:
            return reduce_node(self.client.get(f"{NODES}/{name}"))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return None

    # ---- pods and anchors ----

    def pods(self, selector: str) -> list[Object]:
        """The pods of the namespace that the label selector selects."""
        return list_objects(self.client, self.path("pods"), labelSelector=selector)[0]

    def _list_room_takers(self) -> list[Object]:
        try:
            pods = list_objects(self.client, "/api/v1/pods", reduce=_room_taker)[0]
        except ApiError as error:
            if error.status != 403:
                raise
            pods = list_objects(self.client, self.path("pods"), reduce=_room_taker)[0]
        return [pod for pod in pods if pod]

    def anchors(self, controller: str) -> list[Object]:
        selector = f"{names.CONTROLLER}={names.controller_label(controller)},{names.KIND}={names.ANCHOR_KIND}"
        return list_objects(self.client, self.path("secrets"), labelSelector=selector)[0]

    def find(self, resource: str, name: str) -> Object | None:
        try:
            return self.client.get(self.path(resource, name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    # ---- waiting pods ----

    def waiting_since(self, pod: str, what_for: str) -> float:
        """Since when the pod is known to wait for this, without having waited for something else meanwhile."""
        with self._lock:
            if (known := self._waiting.get(pod)) is not None and known[0] == what_for:
                return known[1]
            self._waiting.pop(pod, None)
            if len(self._waiting) >= _MAX_REMEMBERED:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[pod] = (what_for, self._clock.now())
            return self._waiting[pod][1]

    def end_wait(self, pod: str) -> None:
        with self._lock:
            self._waiting.pop(pod, None)

    # ---- pods that end ----

    def note_end(self, pod: str, reason: Reason, message: str) -> None:
        """Remember how a pod ends, as a watch saw it: its object may be gone when it is described. The first counts."""
        with self._lock:
            if len(self._ends) > _MAX_REMEMBERED:
                self._ends.clear()
            self._ends.setdefault(pod, (reason, message))

    def noted_end(self, pod: str) -> tuple[Reason, str] | None:
        with self._lock:
            return self._ends.get(pod)

    def note_termination(self, pods: Iterable[str]) -> None:
        """Remember that the controller itself ends these pods."""
        now = self._clock.now()
        with self._lock:
            self._terminating = {pod: at for pod, at in self._terminating.items() if now - at < _TERMINATING_S}
            self._terminating |= dict.fromkeys(pods, now)

    def is_terminating(self, pod: str) -> bool:
        with self._lock:
            return pod in self._terminating

    def _read_workloads(self, queues: Iterable[str]) -> kueue.Workloads:
        return kueue.read_workloads(self.client, self.namespace, queues)

    def _list_events(self, uid: str) -> list[Object]:
        """The events about the object with that uid. Raises ApiError."""
        return list_objects(self.client, self.path("events"), fieldSelector=f"involvedObject.uid={uid}")[0]


def _room_taker(pod: Object) -> Object:
    """What the pod takes; empty if it takes nothing."""
    return capacity.reduce_pod(pod) if capacity.occupies(pod) else {}
