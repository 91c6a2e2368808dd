"""The keys of the section `kubernetes`, for its reader and for the documentation."""

from __future__ import annotations

from perdure.controller.runtime.config.config_key import ConfigKey, child_names
from perdure.controller.runtime.config.limits import cloud_limit_keys

# SkyPilot's keys that are accepted, but have no effect.
WITHOUT_EFFECT = (
    "networking",
    "ports",
    "apt_mirrors",
    "post_provision_runcmd",
    "enable_docker",
    "max_inline_command_length",
    "high_availability",
    "auto_mounts",
)

# What may also stand in a task's `config.kubernetes`.
OPTION_KEYS = (
    "pod_config",
    "provision_timeout",
    "custom_metadata",
    "kueue",
    "quota",
    "dws",
    "remote_identity",
    "set_pod_resource_limits",
)

_OF_CONTEXT = (
    ConfigKey("kubernetes.namespace", "text", "that of the context", "The namespace of the pods."),
    ConfigKey(
        "kubernetes.image",
        "text",
        "python:3.12",
        "The image of tasks without `image_id`; it needs Python 3.9 or newer.",
    ),
    ConfigKey(
        "kubernetes.controller_url",
        "URL",
        "listen.advertise",
        "Where pods reach the controller, such as the URL of its Service in the same cluster.",
    ),
    ConfigKey(
        "kubernetes.agent_image",
        "text",
        "none",
        "An image with a relocatable Python at /perdure/bin/python3, for images without Python.",
    ),
    ConfigKey(
        "kubernetes.fuse",
        "true or false",
        "true",
        "Give /dev/fuse to pods of tasks that mount buckets, in a user namespace of their own, where the nodes have a "
        "device plugin for it.",
    ),
    ConfigKey(
        "kubernetes.pod_config", "mapping", "{}", "Fields of a pod, merged into every pod; checked at the start."
    ),
    ConfigKey(
        "kubernetes.provision_timeout",
        "number, or -1",
        "60; 900 after an autoscaler reacts",
        "How long a pod may wait for a node before another offer is tried; -1: for ever.",
        "s",
    ),
    ConfigKey("kubernetes.custom_metadata.labels.<name>", "text", "none", "A label of every pod."),
    ConfigKey("kubernetes.custom_metadata.annotations.<name>", "text", "none", "An annotation of every pod."),
    ConfigKey("kubernetes.kueue.local_queue_name", "text", "none", "The LocalQueue of Kueue that admits the pods."),
    ConfigKey(
        "kubernetes.kueue.admission_timeout",
        "number, or -1",
        "86400",
        "How long Kueue may hold the pods back; -1: for ever.",
        "s",
    ),
    ConfigKey("kubernetes.quota.queue", "text", "none", "Another name for kueue.local_queue_name."),
    ConfigKey("kubernetes.dws.enabled", "true or false", "false", "Use GKE's dynamic workload scheduler, by Kueue."),
    ConfigKey("kubernetes.dws.max_run_duration", "text", "24h", "How long such nodes may be used."),
    ConfigKey(
        "kubernetes.remote_identity",
        "text",
        "SERVICE_ACCOUNT",
        "The service account of the pods; with SERVICE_ACCOUNT, LOCAL_CREDENTIALS and NO_UPLOAD no token is mounted.",
    ),
    ConfigKey(
        "kubernetes.set_pod_resource_limits",
        "true, false or number",
        "false",
        "Limits of CPU and memory, as a multiple of the requests; false: memory is limited to its request, CPU is not.",
    ),
    ConfigKey(
        "kubernetes.autoscaler",
        "one of gke, karpenter, coreweave, nebius, generic",
        "none",
        "What adds nodes when pods wait; launches are then tried although no node has room.",
    ),
    ConfigKey(
        "kubernetes.allowed_nodes.label_selector", "mapping, or list of mappings", "all", "The labels of usable nodes."
    ),
    ConfigKey("kubernetes.allowed_nodes.names", "list of text", "all", "The names of usable nodes."),
    ConfigKey("kubernetes.allowed_nodes.ips", "list of text", "all", "Accepted, but has no effect: name the nodes."),
    ConfigKey("kubernetes.pricing.cpu", "number", "by the node's cloud", "The price of a vCPU.", "USD/h"),
    ConfigKey("kubernetes.pricing.memory", "number", "by the node's cloud", "The price of a GB of memory.", "USD/h"),
    ConfigKey("kubernetes.pricing.accelerators.<name>", "number", "by the node's cloud", "That of a GPU.", "USD/h"),
    ConfigKey(
        "kubernetes.spot_share", "number", "0.4", "Price of a spot node ÷ that of an on-demand node, if unknown."
    ),
    ConfigKey("kubernetes.spot_label.key", "text", "none", "A label of spot nodes, and of their taint."),
    ConfigKey("kubernetes.spot_label.value", "text", "true", "Its value on spot nodes."),
    ConfigKey(
        "kubernetes.node_types", "list of mappings", "[]", "Nodes that an autoscaler would add, offered from the start."
    ),
    ConfigKey(
        "kubernetes.rdma.mode",
        "sriov",
        "sriov",
        "How pods get RDMA adapters that no vendor's labels announce: as virtual functions of SR-IOV.",
    ),
    ConfigKey(
        "kubernetes.rdma.resource", "text", "none", "The device plugin's resource of such a function; pods request it."
    ),
    ConfigKey(
        "kubernetes.rdma.networks",
        "list of text",
        "none",
        "The NetworkAttachmentDefinitions of the functions; one stands for all of them.",
    ),
    ConfigKey(
        "kubernetes.privileged_network",
        "true or false",
        "false",
        "With `network_tier: best`, use networks that need a privileged container: TCPX of GKE, RDMA of OCI without "
        "SR-IOV.",
    ),
    ConfigKey(
        "kubernetes.silent_node_s",
        "number",
        "300",
        "How long the node of a deleted pod may be silent before the pod counts as gone.",
        "s",
    ),
    ConfigKey(
        "kubernetes.termination_grace_s",
        "number",
        "70",
        "How long a pod has between SIGTERM and SIGKILL; more than timeouts.drain_timeout_s.",
        "s",
    ),
)

KEYS = (
    ConfigKey(
        "kubernetes",
        "mapping",
        "none",
        "Enables Kubernetes, even if it is empty; without this section Perdure never uses a cluster.",
    ),
    ConfigKey(
        "kubernetes.allowed_contexts",
        "list of text, or all",
        "the current context",
        "The contexts of the kubeconfig in which pods may be launched.",
    ),
    ConfigKey("kubernetes.kubeconfig", "text", "KUBECONFIG, or ~/.kube/config", "The file with the contexts."),
    *_OF_CONTEXT,
    ConfigKey(
        "kubernetes.context_configs.<context>",
        "mapping",
        "{}",
        "Settings of one context: every key of this section but allowed_contexts and kubeconfig.",
    ),
    *(
        ConfigKey(f"kubernetes.{name}", "any", "none", "Accepted but unused: a setting of SkyPilot.")
        for name in WITHOUT_EFFECT
    ),
    *cloud_limit_keys("kubernetes"),
)

CONFIG_KEYS = child_names(KEYS, "kubernetes")
CONTEXT_KEYS = child_names(_OF_CONTEXT, "kubernetes")
