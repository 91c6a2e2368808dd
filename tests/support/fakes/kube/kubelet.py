"""The kubelets of all nodes: they start the containers of pods, report their state, and end them with their grace."""

from __future__ import annotations

import base64
import copy
import time
from pathlib import Path

from support.fakes.kube.admission import condition, set_condition
from support.fakes.kube.containers import ContainerProcess
from support.fakes.kube.faults import Faults
from support.fakes.kube.store import Object, Store, timestamp


class Kubelets:
    """`folder`: of the pods' files; None: containers are not run. Called with the store's lock held."""

    def __init__(self, store: Store, faults: Faults, folder: Path | None) -> None:
        self._store, self._faults, self._folder = store, faults, folder
        self._containers: dict[str, ContainerProcess] = {}  # by the pod's uid
        self._kill_at: dict[str, float] = {}
        self._addresses = 0

    def sync(self) -> bool:
        """Whether anything changed."""
        return any([self._sync_pod(pod) for pod in self._store.all("pods") if pod["spec"].get("nodeName")])

    def output(self, pod: Object) -> str:
        container = self._containers.get(pod["metadata"]["uid"])
        return container.output() if container else ""

    def container(self, pod: Object) -> ContainerProcess | None:
        return self._containers.get(pod["metadata"]["uid"])

    def end(self, pod: Object, exit_code: int, reason: str, message: str = "") -> None:
        """End the container as if by itself, such as by OOM."""
        container = self._containers.get(pod["metadata"]["uid"])
        if container is not None:
            container.kill()
        self._report_end(pod, exit_code, reason, message)

    def close(self) -> None:
        for container in self._containers.values():
            container.kill()
            container.poll()

    def _sync_pod(self, pod: Object) -> bool:
        if pod["spec"]["nodeName"] in self._faults.no_kubelet:
            return False
        is_deleting = "deletionTimestamp" in pod["metadata"]
        phase = pod["status"]["phase"]
        if phase == "Pending" and not is_deleting:
            return self._start(pod)
        if phase in ("Succeeded", "Failed") or (phase == "Pending" and is_deleting):
            return self._finish_deletion(pod) if is_deleting else False
        container = self._containers.get(pod["metadata"]["uid"])
        exit_code = container.poll() if container else None
        if exit_code is not None:
            self._report_end(pod, exit_code, "Completed" if exit_code == 0 else "Error", _last_words(container))
            return True
        return self._stop(pod, container) if is_deleting else False

    def _start(self, pod: Object) -> bool:
        container = pod["spec"]["containers"][0]
        if problem := self._faults.images.get(container["image"]):
            return self._report_waiting(pod, *problem)
        if pod["status"].get("podIP"):
            return False
        self._addresses += 1
        new = copy.deepcopy(pod)
        address = "127.0.0.1" if self._folder else f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}"
        new["status"] |= {
            "phase": "Running",
            "podIP": address,
            "startTime": timestamp(),
            "containerStatuses": [_container_status(container, {"running": {"startedAt": timestamp()}})],
        }
        set_condition(new, condition("Ready", "True", ""))
        if self._folder is not None:
            folder = self._folder / pod["metadata"]["uid"]
            has_python = container["image"] not in self._faults.without_python
            self._containers[pod["metadata"]["uid"]] = ContainerProcess(
                pod, folder, self._env(new), has_python=has_python
            )
        self._store.update("pods", pod["metadata"]["namespace"], new)
        return True

    def _report_waiting(self, pod: Object, reason: str, message: str) -> bool:
        waiting = {"waiting": {"reason": reason, "message": message}}
        statuses = [_container_status(pod["spec"]["containers"][0], waiting)]
        if pod["status"].get("containerStatuses") == statuses:
            return False
        new = copy.deepcopy(pod)
        new["status"]["containerStatuses"] = statuses
        self._store.update("pods", pod["metadata"]["namespace"], new)
        return True

    def _env(self, pod: Object) -> dict[str, str]:
        values = {}
        for one in pod["spec"]["containers"][0].get("env") or ():
            source = one.get("valueFrom") or {}
            if "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                secret = self._store.get("secrets", pod["metadata"]["namespace"], reference["name"])
                values[one["name"]] = base64.b64decode(secret["data"][reference["key"]]).decode()
            elif "fieldRef" in source:
                value: object = pod
                for name in source["fieldRef"]["fieldPath"].split("."):
                    value = value[name]  # type: ignore[index]
                values[one["name"]] = str(value)
            else:
                values[one["name"]] = one.get("value", "")
        return values

    def _stop(self, pod: Object, container: ContainerProcess | None) -> bool:
        uid, grace_s = pod["metadata"]["uid"], pod["metadata"].get("deletionGracePeriodSeconds") or 0
        now = time.monotonic()
        is_evicted = any(one["type"] == "DisruptionTarget" for one in pod["status"].get("conditions") or ())
        if container is None and not is_evicted:
            grace_s = min(grace_s, self._faults.stop_s)
        if uid not in self._kill_at:
            self._kill_at[uid] = now + grace_s
            if container is not None:
                container.stop()
        self._kill_at[uid] = min(self._kill_at[uid], now + grace_s)
        if now < self._kill_at[uid]:
            return False
        if container is not None:
            container.kill()
        self._report_end(pod, 137, "Error")
        return True

    def _report_end(self, pod: Object, exit_code: int, reason: str, message: str = "") -> None:
        new = copy.deepcopy(pod)
        ended = {"exitCode": exit_code, "reason": reason, "finishedAt": timestamp(), "message": message}
        ended["startedAt"] = pod["status"].get("startTime", timestamp())
        statuses = [_container_status(pod["spec"]["containers"][0], {"terminated": ended})]
        new["status"] |= {"phase": "Succeeded" if exit_code == 0 else "Failed", "containerStatuses": statuses}
        self._store.update("pods", pod["metadata"]["namespace"], new)

    def _finish_deletion(self, pod: Object) -> bool:
        """Confirm the deletion with a grace of 0; a finalizer may still keep the object."""
        if pod["metadata"].get("deletionGracePeriodSeconds") == 0 and pod["metadata"].get("finalizers"):
            return False
        new = copy.deepcopy(pod)
        new["metadata"]["deletionGracePeriodSeconds"] = 0
        self._store.update("pods", pod["metadata"]["namespace"], new)
        return True


def _container_status(container: Object, state: Object) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"sha256:{container['image']}",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def _last_words(container: ContainerProcess | None) -> str:
    """`terminationMessagePolicy: FallbackToLogsOnError`: the end of the output."""
    return container.output()[-2048:] if container else ""
