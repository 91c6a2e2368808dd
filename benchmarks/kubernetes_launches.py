"""How long until the pods of a thousand jobs have been requested, by a real daemon.

    PYTHONPATH=tests python -m benchmarks.kubernetes_launches

The API server is that of the tests, in this process, and its pods are no processes, so the figure is the daemon's own
time and that of a server that answers in milliseconds. Each launch is an anchor, a gated pod, and two changes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml
from benchmarks.latency import Figure, report
from benchmarks.machine import print_machine

from support.fakes.kube import FakeKube, admission
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port

JOBS, TARGET_S = 1000, 60.0
TIMEOUT_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of one pod each (default: %(default)s)")
    jobs = parser.parse_args().jobs
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        took_s, requests = measure(Path(folder), jobs)
    name = f"{jobs} pods submitted → all requested"
    report(
        [
            Figure(name, took_s, "s", TARGET_S * jobs / JOBS),
            Figure("requests to the API server for each pod", requests / jobs, "", 8.0),
        ]
    )
    return 1 if took_s > TARGET_S * jobs / JOBS else 0


def measure(folder: Path, jobs: int) -> tuple[float, int]:
    """(seconds from the submission until every pod exists without its gate, requests that changed something)."""
    admission.schema_errors = lambda *_: ""  # the validation takes more time than all else that the fake does
    with FakeKube() as kube:
        for number in range(max(1, jobs // 50)):
            kube.add_node(f"n{number}", cpu=110, memory_gib=400)
        home = folder / "home"
        home.mkdir()
        port = unused_port()
        kube.settings["controller_url"] = f"http://127.0.0.1:{port}"
        (home / "config.yaml").write_text(f"local: false\nlisten: {{port: {port}}}\n{kube.config}")
        task = folder / "task.yaml"
        task.write_text(yaml.safe_dump({"name": "many", "run": "true", "resources": {"infra": "k8s", "cpus": 1}}))
        with running_controller(home, environ=kube.environ, timeout_s=TIMEOUT_S) as controller:
            began = time.monotonic()
            submission = threading.Thread(target=_submit, args=(controller, task, jobs))
            submission.start()
            while _opened(kube) < jobs:
                if not submission.is_alive() and not kube.calls:
                    raise SystemExit("the jobs were not accepted")
                if time.monotonic() - began > TIMEOUT_S:
                    raise SystemExit(f"only {_opened(kube)} of {jobs} pods after {TIMEOUT_S:.0f} s")
                time.sleep(0.1)
            took_s = time.monotonic() - began
            submission.join()
        changes = ("POST", "PATCH", "DELETE")
        return took_s, sum(count for name, count in kube.calls.items() if name.startswith(changes))


def _submit(controller: Controller, task: Path, jobs: int) -> None:
    controller.perdure("jobs", "launch", task, "-y", "-d", "--num-jobs", jobs)


def _opened(kube: FakeKube) -> int:
    with kube.store.lock:
        return sum(not pod["spec"].get("schedulingGates") for pod in kube.store.all("pods"))


if __name__ == "__main__":
    sys.exit(main())
