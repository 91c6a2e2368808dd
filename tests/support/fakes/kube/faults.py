"""The faults of the fake API server. They may be changed at any time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Faults:
    """Keys such as "POST pods" are a method and a resource. A count decreases with each request that it affects."""

    answers: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # request → the next errors (status, text)
    retry_after_s: float = 1.0  # of an answer 429
    lost_answers: dict[str, int] = field(default_factory=dict)  # requests that take effect unanswered
    lost_requests: dict[str, int] = field(default_factory=dict)  # requests whose connection breaks before any effect
    forbid: set[str] = field(
        default_factory=set
    )  # "verb resource" that the caller has no right to, such as "list nodes"
    quota_pods: int | None = None  # how many pods a ResourceQuota allows
    restricted: bool = False  # the namespace enforces the Pod Security Standard `restricted`
    baseline: bool = False  # the namespace enforces the Pod Security Standard `baseline`
    user_namespaces: bool = True  # the feature gate; without it, `hostUsers` is dropped silently
    capacity: dict[str, int] = field(default_factory=dict)  # zone → how many pods its nodes have room for
    images: dict[str, tuple[str, str]] = field(default_factory=dict)  # image → (waiting reason, message)
    without_python: set[str] = field(default_factory=set)  # images that have no python3
    slow_watch_s: float = 0.0  # how late events reach watches
    cut_watches: int = 0  # how many of the next watch events break their connection in the middle
    silent: bool = False  # the server accepts connections and answers nothing
    #: How long a container that is no process takes to end after SIGTERM; an evicted one takes all of its grace.
    stop_s: float = float("inf")
    no_kubelet: set[str] = field(default_factory=set)  # nodes whose kubelet does nothing any more
