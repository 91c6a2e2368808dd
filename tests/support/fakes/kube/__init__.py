"""A Kubernetes API server on this computer, with a scheduler, and kubelets that run real processes.

    with FakeKube(tmp_path / "kube") as kube:                      # pods run their command: real agents
        kube.add_node("n1", cpu=8, memory_gib=32, zone="z-1")
        (home / "config.yaml").write_text(kube.config)             # `kubernetes:` with the kubeconfig of this server
        with controller_on(home, environ=kube.environ) as one:     # the daemon, in a process of its own
            ...
            kube.evict(kube.pods()[0]["metadata"]["name"])         # as the Eviction API does it
            kube.faults.conflicts["POST pods"] = 2                 # the next two answers are 409

Resource versions, watches with bookmarks, 410 after `history` events, pages, selectors, preconditions, grace periods,
finalizers, scheduling gates, conditions, taints and the Pod Security Standards behave as the real server's do.
`FakeKube()` without a folder starts no processes: containers run until their pod is deleted.
"""

from support.fakes.kube.cluster import FakeKube
from support.fakes.kube.faults import Faults

__all__ = ["FakeKube", "Faults"]
