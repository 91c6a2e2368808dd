"""What became of a pod: its state, and if it ends, whose doing that is.

A disruption is the cluster's doing and the task recovers. A container that exceeds its own limits, an image that does
not exist, or a configuration that cannot work is the user's: it must not be tried for ever. Sources: kubernetes.io/docs
concepts/workloads/pods/disruptions (conditions), concepts/scheduling-eviction/node-pressure-eviction (messages).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perdure.controller.clouds.base.protocol import InstanceState
from perdure.controller.clouds.kubernetes.pods.pod_spec import NO_PYTHON, NO_PYTHON_EXIT
from perdure.recovery.reasons import Reason

# Conditions that announce an end: of Kubernetes itself, and of Kueue.
DISRUPTIONS = ("DisruptionTarget", "TerminationTarget")
# Waiting reasons that no retry can end.
_FATAL_WAITS = ("InvalidImageName", "ErrImageNeverPull")
# Those that a retry often ends, such as a secret that is not synchronized yet or a runtime that is slow to answer. The
# texts are of mistakes that no retry mends.
_FAILED_STARTS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_START_IS_FATAL = re.compile(
    r'(secret|configmap) "[^"]*" not found|couldn.t find key|runAsNonRoot|executable file not found'
)
_PULL_WAITS = ("ImagePullBackOff", "ErrImagePull", "RegistryUnavailable")
# What a registry says of an image that does not exist, or not for everybody: some say "denied" for both.
_IMAGE_IS_MISSING = ("not found", "manifest unknown", "invalid reference")
_IMAGE_IS_PRIVATE = (
    *("denied", "unauthorized", "forbidden", "authorization failed", "authentication required"),
    "no basic auth credentials",
)
_CREDENTIALS_FIX = "name the Secret of its registry in imagePullSecrets of kubernetes.pod_config, or correct image_id"
# The registry's trouble, whatever else the message says.
_REGISTRY_FAILS = re.compile(r"\b(429 Too Many Requests|5\d\d [A-Z]|toomanyrequests)")
# In the message of an eviction: the pod itself was the cause.
_OWN_EVICTION = ("exceeds the total limit of containers", "ephemeral local storage usage exceeds", "Usage of EmptyDir")
_OOM_EXIT = 137


@dataclass(frozen=True)
class PodEnd:
    """How a pod ends or has ended. `message`: in the cluster's own words, with what to do where that is known."""

    reason: Reason
    message: str = ""


@dataclass(frozen=True)
class PodStatus:
    """A pod's state now. `ended_at`: epoch seconds, of the container, if it has ended."""

    state: InstanceState
    end: PodEnd | None = None
    ended_at: float | None = None


def status_of(pod: Mapping[str, Any]) -> PodStatus:
    """The status of a pod by itself; what depends on time or on other objects is decided by the caller."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    phase = status.get("phase", "Pending")
    terminated = terminated_state(pod)
    if phase in ("Succeeded", "Failed"):
        return PodStatus(InstanceState.GONE, _end_of_finished(pod, terminated), ended_at(terminated))
    if "deletionTimestamp" in metadata:
        disruption = disruption_of(pod)
        is_over = terminated is not None and phase == "Running"
        end = disruption or PodEnd(Reason.MACHINE_STOPPED, "the pod was deleted")
        return PodStatus(InstanceState.GONE if is_over else InstanceState.ENDING, end, ended_at(terminated))
    if phase == "Pending":
        fatal = _fatal_wait(pod)
        return PodStatus(InstanceState.GONE if fatal else InstanceState.PENDING, fatal)
    if terminated is not None:  # a sidecar still runs
        return PodStatus(InstanceState.GONE, _end_of_container(pod, terminated), ended_at(terminated))
    return PodStatus(InstanceState.RUNNING, disruption_of(pod))


def disruption_of(pod: Mapping[str, Any]) -> PodEnd | None:
    """The condition that announces the pod's end, if there is one."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") in DISRUPTIONS and one.get("status") == "True":
            words = ": ".join(filter(None, [one.get("reason"), one.get("message")]))
            return PodEnd(Reason.PREEMPTED, words)
    return None


def terminated_state(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `terminated` state of the task's container; None while it runs."""
    name = pod["spec"]["containers"][0]["name"]
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if one.get("name") == name:
            state: Mapping[str, Any] | None = (one.get("state") or {}).get("terminated")
            return state
    return None


def ended_at(terminated: Mapping[str, Any] | None) -> float | None:
    return epoch_s(terminated.get("finishedAt")) if terminated else None


def scheduling(pod: Mapping[str, Any]) -> tuple[str, str]:
    """(reason, message) of a pod that is not scheduled: "Unschedulable" or "SchedulingGated"; empty if it is."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("reason", "")), str(one.get("message", ""))
    return "", ""


def start_problem(pod: Mapping[str, Any]) -> PodEnd | None:
    """Why the last try to start the pod's container failed, although the next one may succeed; None otherwise."""
    for reason, message, image in _waits(pod):
        if reason in _FAILED_STARTS:
            return PodEnd(Reason.PRECHECKS_FAILED, f"{reason}: {message} (image {image})")
    return None


def epoch_s(stamp: object) -> float | None:
    """The time of an RFC 3339 stamp."""
    try:
        return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _end_of_finished(pod: Mapping[str, Any], terminated: Mapping[str, Any] | None) -> PodEnd:
    status = pod.get("status") or {}
    if disruption := disruption_of(pod):
        return disruption
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "Evicted":
        is_own = any(part in message for part in _OWN_EVICTION)
        return PodEnd(Reason.RUN_FAILED if is_own else Reason.PREEMPTED, f"evicted: {message}")
    if reason:  # Terminated and NodeShutdown: the node shuts down; Preempting, NodeLost, UnexpectedAdmissionError, …
        return PodEnd(Reason.PREEMPTED, f"{reason}: {message}")
    if "deletionTimestamp" in pod["metadata"]:
        return PodEnd(Reason.MACHINE_STOPPED, "the pod was deleted")
    return _end_of_container(pod, terminated or {})


def _end_of_container(pod: Mapping[str, Any], terminated: Mapping[str, Any]) -> PodEnd:
    code, reason = terminated.get("exitCode"), terminated.get("reason")
    words = str(terminated.get("message") or "").strip()[-500:]
    if reason == "OOMKilled":
        limit = ((pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}).get("memory", "its limit")
        text = f"the container used more memory than its limit of {limit} (OOMKilled, exit code {_OOM_EXIT})"
        return PodEnd(Reason.RUN_FAILED, f"{text}; request more `memory`")
    if code == NO_PYTHON_EXIT or NO_PYTHON in words:
        image = pod["spec"]["containers"][0].get("image")
        fix = "choose an image with Python, or set kubernetes.agent_image"
        return PodEnd(Reason.PRECHECKS_FAILED, f"{NO_PYTHON} ({image}): {fix}")
    if reason in ("ContainerCannotRun", "StartError"):
        return PodEnd(Reason.PRECHECKS_FAILED, f"the container cannot run: {words}")
    if code == 0:
        return PodEnd(Reason.MACHINE_STOPPED, "the agent has ended")
    return PodEnd(Reason.MACHINE_CRASHED, f"the agent exited with {code}: {words}" if words else f"exit code {code}")


def _fatal_wait(pod: Mapping[str, Any]) -> PodEnd | None:
    """Why the pod can never start; None if it may."""
    for reason, message, image in _waits(pod):
        words = f"{reason}: {message} (image {image})"
        if reason in _PULL_WAITS and not _REGISTRY_FAILS.search(message):
            if any(part in message.lower() for part in _IMAGE_IS_PRIVATE):
                return PodEnd(Reason.PRECHECKS_FAILED, f"{words}; {_CREDENTIALS_FIX}")
            if any(part in message.lower() for part in _IMAGE_IS_MISSING):
                return PodEnd(Reason.PRECHECKS_FAILED, words)
        elif reason in _FATAL_WAITS or (reason in _FAILED_STARTS and _START_IS_FATAL.search(message)):
            return PodEnd(Reason.PRECHECKS_FAILED, words)
    return None


def _waits(pod: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(reason, message, image) of each container that waits."""
    status = pod.get("status") or {}
    for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        yield str(waiting.get("reason", "")), str(waiting.get("message", "")), str(one.get("image"))
