"""What ten thousand pods cost a controller that watches them: a list of all, and a thousand changes a second.

    PYTHONPATH=tests python -m benchmarks.kubernetes_pods

The API server is that of the tests, in this process; the watch is in a process of its own, whose memory and CPU count.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import threading
import time
from typing import Any

from benchmarks.latency import Figure, report
from benchmarks.machine import print_machine

from perdure.controller.clouds.kubernetes.api.client import ApiClient
from perdure.controller.clouds.kubernetes.api.kubeconfig import Kubeconfig
from perdure.controller.clouds.kubernetes.api.watch import ObjectWatch
from perdure.controller.clouds.kubernetes.notices import reduce_pod
from support.fakes.kube import FakeKube

PODS, CHANGES_PER_S, CHANGES_S = 10_000, 1000, 20.0
PATH = "/api/v1/namespaces/training/pods"
# A pod of a real cluster has about 6 kB, of which its managed fields are the larger part.
PAD = "x" * 4000
STAMP = "2026-01-01T00:00:00Z"
ANNOTATIONS = {"perdure.dev/owner": "o" * 200, "perdure.dev/place": "p" * 80}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", help="the kubeconfig of the process that watches")
    kubeconfig = parser.parse_args().watch
    if kubeconfig:
        return watch(kubeconfig)
    print_machine()
    measured = measure()
    report(
        [
            Figure("10,000 pods listed, CPU", measured["list_cpu_s"], "s", 2.0),
            Figure("10,000 pods known, memory", measured["memory_mib"], "MiB", 25.0),
            Figure("1,000 changes per second, CPU of a core", 100 * measured["cpu_share"], "%", 30.0),
        ]
    )
    return 0


def measure(changes_s: float = CHANGES_S) -> dict[str, float]:
    """`changes_s`: how long pods change, in seconds."""
    with FakeKube() as kube:
        kube._closed.set()  # nothing is scheduled or started
        with kube.store.lock:
            for number in range(PODS):
                kube.store.create("pods", "training", _pod(number))
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kubernetes_pods", "--watch", str(kube.kubeconfig)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            listed = json.loads(process.stdout.readline())
            _change(kube, changes_s)
            process.stdin.write("\n")
            process.stdin.flush()
            return listed | json.loads(process.stdout.readline())


def _change(kube: FakeKube, seconds: float) -> None:
    began = time.monotonic()
    for number in range(int(CHANGES_PER_S * seconds)):
        with kube.store.lock:
            pod = copy.copy(kube.store.get("pods", "training", f"pod-{number % PODS}"))
            pod["metadata"] = {**pod["metadata"], "annotations": {**ANNOTATIONS, "change": str(number)}}
            kube.store.update("pods", "training", pod)
        time.sleep(max(0.0, began + number / CHANGES_PER_S - time.monotonic()))


def watch(kubeconfig: str) -> int:
    """Print what the list has cost, and after a line of input what the changes since have cost."""
    known = Kubeconfig({}, [kubeconfig])
    client = ApiClient(known.access("fake"))
    changes = 0

    def count(_old: object, _new: object) -> None:
        nonlocal changes
        changes += 1

    before_mib, before_s = _rss_mib(), time.process_time()
    pods = ObjectWatch(lambda: client, PATH, count, reduce=reduce_pod)
    threading.Thread(target=_follow, args=(pods,), daemon=True).start()
    pods.is_synced.wait()
    listed = {"list_cpu_s": time.process_time() - before_s, "memory_mib": _rss_mib() - before_mib}
    changes, began, before_s = 0, time.monotonic(), time.process_time()
    print(json.dumps(listed), flush=True)
    sys.stdin.readline()
    share = (time.process_time() - before_s) / (time.monotonic() - began)
    seconds = time.monotonic() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    after = {"cpu_share": share, "changes": changes, "changes_s": seconds, "peak_mib": peak_mib}
    print(json.dumps(after | {"changed_memory_mib": _rss_mib() - before_mib}), flush=True)
    return 0


def _follow(pods: ObjectWatch) -> None:
    while True:
        pods.run_once()


def _rss_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _pod(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"pod-{number}",
            "uid": f"{number:036d}",
            "labels": {
                "perdure.dev/kind": "pod",
                "perdure.dev/job": str(number),
                "perdure.dev/token": f"{number:010x}",
            },
            "annotations": ANNOTATIONS,
            "managedFields": [{"manager": PAD}],
        },
        "spec": {
            "nodeName": f"node-{number % 500}",
            "containers": [{"name": "task", "image": "python:3.12", "env": [{"name": "PAD", "value": "y" * 1500}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "hostIP": "10.1.0.1",
            "qosClass": "Burstable",
            "startTime": STAMP,
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": STAMP}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": "task",
                    "image": "python:3.12",
                    "imageID": f"docker.io/library/python@sha256:{number:064d}",
                    "containerID": f"containerd://{number:064d}",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": STAMP}},
                }
            ],
        },
    }


if __name__ == "__main__":
    sys.exit(main())
