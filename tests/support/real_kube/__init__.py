"""A real Kubernetes on this computer, built by scripts/ensure-kubernetes.sh.

servers = Servers(); servers.start(); create_pod_policies(servers)
nodes = HollowNodes(servers.client()); nodes.start()
kube = RealKube(servers, nodes, tmp_path)               # a namespace, with the rights of deploy/kubernetes/rbac.yaml
kube.add_node("n1"); kube.evict("pd-1-0-1-0-0123456789")  # as `support.fakes.kube.FakeKube` does it
"""

from support.real_kube.cluster import RealKube, create_pod_policies
from support.real_kube.hollow_nodes import HollowNodes
from support.real_kube.servers import Servers, missing

__all__ = ["HollowNodes", "RealKube", "Servers", "create_pod_policies", "missing"]
