"""How soon a sign of a Kubernetes pod's end becomes a signal in the controller.

    PYTHONPATH=tests python -m benchmarks.kubernetes_notices

The API server is that of the tests, on this machine, so the figures are the controller's share: its watches, and the
parsing of what they bring. The network comes on top, and so does the way to the workload, which `benchmarks.latency`
measures. The last figure is of a whole daemon and of pods that run real agents: until the job is RECOVERING. SkyPilot
checks its jobs every 15 s, so a sign waits half of that on average.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

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
from support.helpers.controllers import Controller, running_controller
from support.helpers.launch_requests import launch_request
from support.helpers.ports import unused_port

TRIALS = 20
JOB_TRIALS = 5
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
    whole_ms = 1000 * statistics.median(measure_jobs())
    name = "taint of a node → the job is RECOVERING, median"
    figures.append(Figure(name, whole_ms, "ms", 1000 * TARGET_S, 1000 * SKYPILOT_POLL_S, "interval of its checks"))
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


def measure_jobs() -> list[float]:
    """Seconds from the taint of its node until a running job is RECOVERING, for one attempt after another."""
    with tempfile.TemporaryDirectory() as folder, FakeKube(Path(folder) / "kube") as kube:
        for number in range(JOB_TRIALS + 1):
            kube.add_node(f"node-{number}", zone=f"zone-{number}", labels={"karpenter.sh/capacity-type": "spot"})
        home, port = Path(folder) / "home", unused_port()
        home.mkdir()
        kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
        (home / "config.yaml").write_text(f"local: false\nlisten: {{port: {port}}}\n{kube.config}")
        with running_controller(home, environ=kube.environ) as controller:
            run = "trap 'exit 1' TERM; echo attempt $PERDURE_GENERATION runs; while :; do sleep 0.1; done"
            task = {"name": "waits", "run": run, "resources": {"infra": "k8s", "cpus": "1", "use_spot": True}}
            job = int(controller.client.submit("waits", [task], user="", key="waits")["job_id"])
            took_s = [_measure_job_once(kube, controller, job, number + 1) for number in range(JOB_TRIALS)]
            controller.perdure("jobs", "cancel", job, "-y")
            controller.until(lambda: not kube.pods(), "the end of every pod")
        return took_s


def _measure_job_once(kube: FakeKube, controller: Controller, job: int, generation: int) -> float:
    controller.until(lambda: f"attempt {generation} runs" in controller.log(job), f"attempt {generation}")
    controller.until(lambda: controller.job(job)["status"] == "RUNNING", "the job to run")
    pod = next(one for one in kube.pods() if one["metadata"]["name"].startswith(f"pd-{job}-0-{generation}-"))
    began = time.monotonic()
    kube.taint(pod["spec"]["nodeName"], "karpenter.sh/disrupted")
    while controller.job(job)["status"] != "RECOVERING":
        if time.monotonic() - began > TIMEOUT_S:
            raise SystemExit(f"the job was not RECOVERING within {TIMEOUT_S:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - began


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
