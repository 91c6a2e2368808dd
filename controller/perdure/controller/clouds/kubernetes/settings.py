"""The `kubernetes:` section of `config.yaml`. Only if there is one, which may be empty, are clusters used.

kubernetes:
  allowed_contexts: [prod, arn:aws:eks:…]   # or `all`; default: the current context
  namespace: training                       # default: the context's
  image: pytorch/pytorch                    # of tasks without an image; it needs Python 3.9 or newer
  pod_config: {spec: {priorityClassName: low}}
  provision_timeout: 120                    # seconds a pod may wait for a node; -1: for ever
  autoscaler: karpenter
  pricing: {cpu: 0.04, memory: 0.005, accelerators: {H100: 3.5}}
  spot_label: {key: capacity, value: spot}  # of spot nodes, in addition to the labels of GKE, EKS, AKS and Karpenter
  node_types: [{vcpus: 8, memory_gib: 32, labels: {pool: a}, price_per_hour: 0.4}]   # nodes an autoscaler would add
  context_configs: {prod: {namespace: jobs}}

The keys are SkyPilot's, so far as they have a meaning here. All but `allowed_contexts`, `kubeconfig` and
`context_configs` may stand below `context_configs.<context>`; those of `OPTION_KEYS` also in a task's
`config.kubernetes`. The order is: section, context, task; `pod_config` is merged, others are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.controller.clouds.base.config_section import Section, SectionError
from perdure.controller.clouds.kubernetes.config_keys import (
    CONFIG_KEYS,
    CONTEXT_KEYS,
    KEYS,
    OPTION_KEYS,
    WITHOUT_EFFECT,
)
from perdure.controller.clouds.kubernetes.pods import pod_config
from perdure.controller.clouds.kubernetes.pods.fabric import RdmaSettings
from perdure.controller.runtime.config.config_key import child_names

DEFAULT_IMAGE = "python:3.12"
DEFAULT_PROVISION_TIMEOUT_S = 60.0
DEFAULT_ADMISSION_TIMEOUT_S = 24 * 3600.0
AUTOSCALERS = ("gke", "karpenter", "coreweave", "nebius", "generic")
FOREVER_S = float("inf")
_IDENTITIES = ("SERVICE_ACCOUNT", "LOCAL_CREDENTIALS", "NO_UPLOAD")


@dataclass(frozen=True)
class PodOptions:
    """What shapes the pods of an attempt."""

    pod_config: dict[str, Any] = field(default_factory=dict)
    provision_timeout_s: float = DEFAULT_PROVISION_TIMEOUT_S
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    queue: str | None = None  # Kueue's LocalQueue
    admission_timeout_s: float = DEFAULT_ADMISSION_TIMEOUT_S  # how long Kueue may hold the pods back
    service_account: str | None = None  # None: no token is mounted
    #: Limits of CPU and memory as a multiple of the requests; None: the default limits.
    limits_multiplier: float | None = None
    max_run_duration: str | None = None  # of GKE's dynamic workload scheduler


@dataclass(frozen=True)
class Pricing:
    """USD per hour. None: the price tables of the node's cloud, or `nodes.prices`."""

    cpu: float | None = None  # a vCPU
    memory: float | None = None  # a GB
    accelerators: dict[str, float] = field(default_factory=dict)  # one of each

    def __bool__(self) -> bool:
        return self.cpu is not None or self.memory is not None or bool(self.accelerators)


@dataclass(frozen=True)
class NodeType:
    """Nodes that an autoscaler would add: offered although none exists."""

    vcpus: float
    memory_gib: float
    labels: dict[str, str] = field(default_factory=dict)
    accelerators: tuple[str, int] | None = None
    zones: tuple[str, ...] = ()
    is_spot: bool = False
    price_per_hour: float | None = None  # of a whole node; None: as for other nodes


@dataclass(frozen=True)
class ContextSettings:
    """The settings of one context."""

    namespace: str | None = None
    image: str = DEFAULT_IMAGE
    agent_image: str | None = None
    controller_url: str | None = None  # None: the controller's endpoint
    options: PodOptions = field(default_factory=PodOptions)
    autoscaler: str | None = None
    allowed_labels: tuple[dict[str, str], ...] = ()  # a node needs all labels of one of them
    allowed_names: tuple[str, ...] = ()
    pricing: Pricing = field(default_factory=Pricing)
    spot_label: tuple[str, str] | None = None
    node_types: tuple[NodeType, ...] = ()
    spot_share: float = 0.4  # price of a spot node ÷ that of an on-demand node, where nothing else is known
    silent_node_s: float = 300.0  # after this time without a sign of its node, a pod that is being deleted is gone
    grace_s: int = 70  # between SIGTERM and SIGKILL
    rdma: RdmaSettings | None = None
    privileged_network: bool = False  # `network_tier: best` may use privileged containers
    fuse: bool = True  # pods that mount buckets get FUSE where the nodes offer it


@dataclass(frozen=True)
class KubernetesSettings:
    """The whole section."""

    section: dict[str, Any] = field(default_factory=dict)
    kubeconfig: str | None = None
    allowed_contexts: tuple[str, ...] | None = ()  # empty: the current one; None: all

    @classmethod
    def from_mapping(cls, mapping: object) -> KubernetesSettings:
        """From the section of config.yaml. Raises SettingsError, which names the field."""
        section = Section({} if mapping is None else mapping, "kubernetes", known=CONFIG_KEYS)
        allowed = section.values.get("allowed_contexts")
        settings = cls(
            section=section.values,
            kubeconfig=section.text_or_none("kubeconfig"),
            allowed_contexts=None
            if allowed == "all"
            else section.names("allowed_contexts", r"\S+", kind="context", example="prod"),
        )
        settings.of_context("")
        for context in section.subsection("context_configs").values:
            settings.of_context(context)
        return settings

    def of_context(self, context: str) -> ContextSettings:
        """The settings of a context. Raises SettingsError."""
        own = Section(self.section, "kubernetes")
        result = _context_settings(ContextSettings(), own)
        given = own.subsection("context_configs").values.get(context)
        if given is None:
            return result
        where = f"kubernetes.context_configs.{context}"
        return _context_settings(result, Section(given, where, known=(*CONTEXT_KEYS, *WITHOUT_EFFECT)))

    def without_effect(self) -> list[str]:
        """The keys of the section that are accepted, but have no effect."""
        return [name for name in WITHOUT_EFFECT if name in self.section]


def _context_settings(base: ContextSettings, section: Section) -> ContextSettings:
    values = section.values
    nodes = _subsection(section, "allowed_nodes")
    return ContextSettings(
        namespace=section.text_or_none("namespace", r"[a-z0-9-]{1,63}", kind="namespace", example="training")
        or base.namespace,
        image=section.text("image", base.image),
        agent_image=section.text_or_none("agent_image") or base.agent_image,
        controller_url=section.url_or_none("controller_url") or base.controller_url,
        options=with_options(base.options, section),
        autoscaler=_choice(section, "autoscaler", AUTOSCALERS) or base.autoscaler,
        allowed_labels=_label_selectors(nodes) if "label_selector" in nodes.values else base.allowed_labels,
        allowed_names=nodes.names("names", r"\S+", kind="node", example="node-1") or base.allowed_names,
        pricing=_pricing(section) if "pricing" in values else base.pricing,
        spot_label=_spot_label(section) if "spot_label" in values else base.spot_label,
        node_types=_node_types(section) if "node_types" in values else base.node_types,
        spot_share=section.number("spot_share", base.spot_share, above=0.0),
        silent_node_s=section.number("silent_node_s", base.silent_node_s, above=0.0),
        grace_s=int(section.number("termination_grace_s", float(base.grace_s), above=1.0)),
        rdma=_rdma(section) if "rdma" in values else base.rdma,
        privileged_network=section.flag("privileged_network", default=base.privileged_network),
        fuse=section.flag("fuse", default=base.fuse),
    )


def with_options(base: PodOptions, section: Section) -> PodOptions:
    """`base` with what `section` (of config.yaml, a context, or a task) sets. Raises SettingsError."""
    values = section.values
    config, _ = pod_config.repaired(values.get("pod_config") or {}) if _is_mapping(section, "pod_config") else ({}, [])
    pod_config.check(config, f"{section.where}.pod_config")
    metadata = section.subsection("custom_metadata")
    for name in metadata.values:
        if name not in ("labels", "annotations"):
            raise SectionError("is set by Perdure", where=f"{metadata.where}.{name}", fix="write labels or annotations")
    kueue, quota = _subsection(section, "kueue"), _subsection(section, "quota")
    return PodOptions(
        pod_config=pod_config.merged(base.pod_config, config, f"{section.where}.pod_config"),
        provision_timeout_s=_seconds(section, "provision_timeout", base.provision_timeout_s),
        labels=base.labels | metadata.subsection("labels").texts(),
        annotations=base.annotations | metadata.subsection("annotations").texts(),
        queue=kueue.text_or_none("local_queue_name") or quota.text_or_none("queue") or base.queue,
        admission_timeout_s=_seconds(kueue, "admission_timeout", base.admission_timeout_s),
        service_account=_service_account(section) if "remote_identity" in values else base.service_account,
        limits_multiplier=_multiplier(section) if "set_pod_resource_limits" in values else base.limits_multiplier,
        max_run_duration=_max_run_duration(section) or base.max_run_duration,
    )


def task_options(base: PodOptions, settings: Mapping[str, Any]) -> PodOptions:
    """`base` with a task's `config.kubernetes`. Raises SettingsError."""
    known = {name: value for name, value in settings.items() if name in OPTION_KEYS}
    return with_options(base, Section(known, "config.kubernetes"))


def _subsection(section: Section, name: str) -> Section:
    """A subsection with the keys that the documentation lists."""
    values = section.values.get(name)
    return Section(
        {} if values is None else values, f"{section.where}.{name}", known=child_names(KEYS, f"kubernetes.{name}")
    )


def _is_mapping(section: Section, name: str) -> bool:
    value = section.values.get(name)
    if value is not None and not isinstance(value, Mapping):
        where = f"{section.where}.{name}"
        raise SectionError(f"{value!r} is not a mapping", where=where, fix="write `spec:` and `metadata:`")
    return value is not None


def _seconds(section: Section, name: str, default: float) -> float:
    if section.values.get(name) in (-1, "-1"):
        return FOREVER_S
    return section.number(name, default, above=0.0) if name in section.values else default


def _choice(section: Section, name: str, choices: tuple[str, ...]) -> str | None:
    value = section.text_or_none(name)
    if value is not None and value.lower() not in choices:
        where = f"{section.where}.{name}"
        raise SectionError(f"{value!r} is not an autoscaler", where=where, fix=f"write one of {', '.join(choices)}")
    return value.lower() if value else None


def _label_selectors(nodes: Section) -> tuple[dict[str, str], ...]:
    value = nodes.values["label_selector"]
    listed = value if isinstance(value, list) else [value]
    return tuple(Section(one, f"{nodes.where}.label_selector").texts() for one in listed)


def _pricing(section: Section) -> Pricing:
    pricing = _subsection(section, "pricing")
    accelerators = pricing.subsection("accelerators")
    return Pricing(
        cpu=pricing.number("cpu", above=0.0) if "cpu" in pricing.values else None,
        memory=pricing.number("memory", above=0.0) if "memory" in pricing.values else None,
        accelerators={name: accelerators.number(name, above=0.0) for name in accelerators.values},
    )


def _spot_label(section: Section) -> tuple[str, str]:
    label = _subsection(section, "spot_label")
    return label.text("key", ""), label.text("value", "true")


def _rdma(section: Section) -> RdmaSettings:
    rdma = _subsection(section, "rdma")
    if rdma.text("mode", "sriov") != "sriov":
        mode = rdma.values["mode"]
        raise SectionError(f"{mode!r} is not a mode of RDMA", where=f"{rdma.where}.mode", fix="write sriov")
    resource = rdma.text_or_none("resource", r"[a-z0-9.-]+/[A-Za-z0-9_.-]+", kind="resource", example="nvidia.com/vf")
    if resource is None:
        raise SectionError("is missing", where=f"{rdma.where}.resource", fix="name the resource of the device plugin")
    return RdmaSettings(resource, rdma.names("networks", r"\S+", kind="network", example="sriov/rdma"))


def _node_types(section: Section) -> tuple[NodeType, ...]:
    listed = section.values["node_types"]
    if not isinstance(listed, list):
        where = f"{section.where}.node_types"
        raise SectionError(f"{listed!r} is not a list", where=where, fix="write - {vcpus: 8, memory_gib: 32}")
    return tuple(_node_type(one, f"{section.where}.node_types[{index}]") for index, one in enumerate(listed))


def _node_type(value: object, where: str) -> NodeType:
    known = ("vcpus", "memory_gib", "labels", "accelerators", "zones", "spot", "price_per_hour")
    section = Section(value, where, known=known)
    accelerators = [
        (name, int(section.subsection("accelerators").number(name, above=0.0)))
        for name in section.subsection("accelerators").values
    ]
    return NodeType(
        vcpus=section.number("vcpus", above=0.0),
        memory_gib=section.number("memory_gib", above=0.0),
        labels=section.subsection("labels").texts(),
        accelerators=accelerators[0] if accelerators else None,
        zones=section.names("zones", r"\S+", kind="zone", example="us-east-1a"),
        is_spot=section.flag("spot"),
        price_per_hour=section.number("price_per_hour", above=0.0) if "price_per_hour" in section.values else None,
    )


def _service_account(section: Section) -> str | None:
    """A name; in a mapping from context to name, the context is matched by the caller's section."""
    value = section.values["remote_identity"]
    if isinstance(value, Mapping):
        raise SectionError(
            "is a mapping", where=f"{section.where}.remote_identity", fix="write it below context_configs.<context>"
        )
    name = section.text("remote_identity", "")
    return None if name in _IDENTITIES else name


def _multiplier(section: Section) -> float | None:
    value = section.values["set_pod_resource_limits"]
    if isinstance(value, bool):
        return 1.0 if value else None
    multiplier = section.number("set_pod_resource_limits", above=0.0)
    if multiplier < 1.0:
        where = f"{section.where}.set_pod_resource_limits"
        raise SectionError(f"{multiplier:g} is below 1", where=where, fix="write true, false, or 1 or more")
    return multiplier


def _max_run_duration(section: Section) -> str | None:
    dws = _subsection(section, "dws")
    if not dws.values or not dws.flag("enabled", default=True):
        return None
    return dws.text_or_none("max_run_duration") or "24h"
