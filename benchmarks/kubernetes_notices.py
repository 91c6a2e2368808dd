"""How soon a sign of a Kubernetes pod's end becomes a signal in the controller.

    PYTHONPATH=tests python -m benchmarks.kubernetes_notices

The API server is that of the tests, on this machine, so the figures are the controller's share: its watches, and the
parsing of what they bring. The network comes on top, and so does the way to the workload, which `benchmarks.latency`
measures. SkyPilot checks its jobs every 15 s, so a sign waits half of that on average.
"""

from __future__ import annotations

import logging
import statistics
import sys
import threading
import time
from collections.abc import Callable

import structlog
from benchmarks.latency import Figure, report
from benchmarks.machine import print_machine

from perdure.controller.clouds.base.notice_queue import Signal
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.kubernetes.notices import ContextWatch
from perdure.controller.clouds.kubernetes.settings import KubernetesSettings
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery.market.view import Market
from support.fakes.kube import FakeKube
from support.helpers.launch_requests import launch_request

TRIALS = 20
TIMEOUT_S = 30.0
TARGET_S, SKYPILOT_POLL_S = 1.0, 15.0
TAINT = "cloud.google.com/impending-node-termination"

Sign = Callable[[FakeKube, str, str], None]  # (cluster, pod, node)
SIGNS: dict[str, Sign] = {
    "deletion of a pod → signal, median": lambda kube, pod, _: kube.delete_pod(pod, 60),
    "taint of a node → signal, median": lambda kube, _, node: kube.taint(node, TAINT),
}


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print_machine()
    figures = []
    for name, sign in SIGNS.items():
        here_ms = 1000 * statistics.median(measure(sign))
        figures.append(Figure(name, here_ms, "ms", 1000 * TARGET_S, 1000 * SKYPILOT_POLL_S, "interval of its checks"))
    report(figures)
    return 1 if any(figure.value > figure.target for figure in figures) else 0


def measure(sign: Sign) -> list[float]:
    """Seconds from the sign to its notice, for one pod after another, each on its own node."""
    with FakeKube() as kube:
        for number in range(TRIALS):
            kube.add_node(f"node-{number}", zone=f"zone-{number}")
        cloud = KubernetesCloud(KubernetesSettings.from_mapping({"kubeconfig": str(kube.kubeconfig)}), SystemClock())
        (queue,) = cloud.notice_queues()
        assert isinstance(queue, ContextWatch)
        _start(queue)
        try:
            return [_measure_once(kube, cloud, queue, number, sign) for number in range(TRIALS)]
        finally:
            queue.stop()


def _measure_once(kube: FakeKube, cloud: KubernetesCloud, queue: ContextWatch, number: int, sign: Sign) -> float:
    node, zone = f"node-{number}", f"zone-{number}"
    request = launch_request(
        "kubernetes", kube.context, zone, "1CPU--2GB", f"t{number}", memory_gib=2, market=Market.ON_DEMAND
    )
    (machine,) = cloud.launch(request)
    _until(lambda: _is_running(queue, machine.id) and queue.nodes.find(node) is not None)
    began = time.monotonic()
    sign(kube, machine.id, node)
    while time.monotonic() - began < TIMEOUT_S:
        messages = queue.receive()
        took_s = time.monotonic() - began
        signals = [signal for message in messages for signal in queue.parse(message)]
        queue.delete(messages)
        if any(one.signal is Signal.NOTICE and one.instance_id == machine.id for one in signals):
            return took_s
    raise SystemExit(f"no notice of {machine.id} came within {TIMEOUT_S:.0f} s")


def _start(queue: ContextWatch) -> None:
    """The first call starts the watches."""
    threading.Thread(target=queue.receive, daemon=True).start()
    _until(lambda: queue.pods.is_synced.is_set() and queue.nodes.is_synced.is_set())


def _is_running(queue: ContextWatch, pod: str) -> bool:
    seen = queue.pods.find(pod)
    return seen is not None and seen["status"].get("phase") == "Running"


def _until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"the watches were not up to date within {TIMEOUT_S:.0f} s")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
