"""The fields of `service`, with SkyPilot's names and defaults (`sky/utils/schemas.py` of 0.14), and rules between them.

The canonical form has a mapping for `readiness_probe`. What a service needs of `resources` is checked by
`check_service`, when it is started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import FieldPath, InvalidValue, Problem, describe
from perdure.sdk.spec.validators import (
    FLAG,
    TEXT,
    Anything,
    Field,
    Number,
    OneOf,
    Parsed,
    Record,
    Table,
    choice,
    matching,
)

Config = dict[str, Any]

DEFAULT_INITIAL_DELAY_S, DEFAULT_PROBE_TIMEOUT_S, DEFAULT_PROBE_INTERVAL_S = 1200.0, 15.0, 10.0
DEFAULT_FAILURE_THRESHOLD_S = 180.0
DEFAULT_UPSCALE_DELAY_S, DEFAULT_DOWNSCALE_DELAY_S = 300.0, 1200.0
DEFAULT_STREAM_TIMEOUT_S = 120.0
LEAST_LOAD, ROUND_ROBIN, INSTANCE_AWARE = "least_load", "round_robin", "instance_aware_least_load"
MAX_REPLICAS = 1000

_MAX_DELAY_S = 30 * 86_400
_OF_POOLS = "to pools, which Perdure does not have"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LABEL = "(?!-)[a-z0-9-]{1,63}(?<!-)"
_DOMAIN = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})+"
_GPU_KEY = re.compile("[A-Z0-9]+(:[0-9]+)?")


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise InvalidValue(f"found {describe(value)}", "a path starts with `/`")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise InvalidValue(f"found {describe(value)}", "write characters that are not ASCII, and spaces, as %XX")
    return value


def _json_text(value: str) -> str:
    import json  # imported here because few tasks need it

    try:
        json.loads(value)
    except ValueError:
        raise InvalidValue(f"found {describe(value)}, which is not JSON") from None
    return value


def _header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value):
        raise InvalidValue(f"{describe(value)} is not the name of a header")
    return value


def _header_value(value: Any) -> str:
    text = str(value)
    if not text.isprintable():
        raise InvalidValue("a header has one line of printable characters")
    return text


def _gpu(value: str) -> str:
    if not _GPU_KEY.fullmatch(value):
        raise InvalidValue(f"found {describe(value)}")
    return value


def _delay(default: float, meaning: str) -> Field:
    return Field(Number(0, _MAX_DELAY_S, whole=False), f"{meaning} Default: {default:g}.")


_PATH = Parsed(_path, "a path that starts with `/`")
_QPS = Number(positive=True, whole=False)
PROBE = Record(
    {
        "path": Field(_PATH, "Path of the request. Any answer but 200 means that the replica is not ready."),
        "initial_delay_seconds": _delay(
            DEFAULT_INITIAL_DELAY_S, "Seconds from the start of `run` until a replica must be ready."
        ),
        "timeout_seconds": Field(
            Number(positive=True, high=_MAX_DELAY_S, whole=False),
            f"Seconds that a probe waits for the answer. Default: {DEFAULT_PROBE_TIMEOUT_S:g}.",
        ),
        "endpoint_probe_interval_seconds": Field(
            Number(positive=True, high=_MAX_DELAY_S, whole=False),
            "Seconds between two probes of a replica that is ready; others are probed every second. "
            f"Default: {DEFAULT_PROBE_INTERVAL_S:g}.",
        ),
        "consecutive_failure_threshold_timeout": _delay(
            DEFAULT_FAILURE_THRESHOLD_S, "Seconds after which a replica whose probes keep failing is replaced."
        ),
        "post_data": Field(
            OneOf(
                Parsed(_json_text, "a string of JSON"),
                Table(TEXT, Anything(), nullable=True),
                allowed="JSON, as text or as a mapping",
            ),
            "Body of the probe, which is then a POST. Default: none; the probe is a GET.",
        ),
        "headers": Field(
            Table(
                Parsed(_header_name, "the name of a header", (str,)),
                Parsed(_header_value, "text or a number", (str, int, float, bool)),
            ),
            "Headers of the probe. Default: none.",
        ),
    },
    "a mapping with a path",
    required=("path",),
    marker="path",
)


def _check_policy(config: Config, _raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    low, high = config.get("min_replicas"), config.get("max_replicas")
    target = config.get("target_qps_per_replica", config.get("target_ongoing_requests_per_replica"))
    if low is not None and high is not None and high < low:
        report.add_problem((*path, "max_replicas"), f"found {high}, below min_replicas", f"give at least {low}")
    if low is not None and high is not None and high > low and target is None:
        fix = "give `target_qps_per_replica`, or `target_ongoing_requests_per_replica`"
        report.add_problem((*path, "max_replicas"), "nothing tells how many replicas a load needs", fix)
    if target is not None and low is not None and (high is None or high == low):
        report.add_warning((*path, "min_replicas"), "accepted, but without a larger `max_replicas` nothing is scaled")
    if isinstance(target, Mapping) and not target:
        report.add_problem((*path, "target_qps_per_replica"), "found an empty mapping", "give {A100: 2.5}")
    return config


POLICY = Record(
    {
        "min_replicas": Field(Number(0, MAX_REPLICAS), "The least replicas. 0: none while there are no requests."),
        "max_replicas": Field(
            Number(1, MAX_REPLICAS), "The most replicas that the load may ask for. Default: `min_replicas`."
        ),
        "num_overprovision": Field(Number(0, MAX_REPLICAS), "Spot replicas beyond what is needed. Default: 0."),
        "target_qps_per_replica": Field(
            OneOf(
                _QPS,
                Table(Parsed(_gpu, "an accelerator such as A100 or A100:8, in capitals"), _QPS),
                allowed="a number above 0, or a mapping such as {A100: 2.5}",
            ),
            "Requests per second that a replica answers. A mapping says so by accelerator, and needs "
            "`load_balancing_policy: instance_aware_least_load`.",
        ),
        "target_ongoing_requests_per_replica": Field(
            Number(positive=True, whole=False),
            "Requests that a replica answers at the same time: the better measure for models. Not in SkyPilot.",
        ),
        "upscale_delay_seconds": _delay(
            DEFAULT_UPSCALE_DELAY_S, "Seconds that the load must ask for more replicas. From 0, there is no delay."
        ),
        "downscale_delay_seconds": _delay(
            DEFAULT_DOWNSCALE_DELAY_S, "Seconds that the load must ask for fewer replicas."
        ),
        "dynamic_ondemand_fallback": Field(
            FLAG, "Whether on-demand replicas stand in for spot replicas that are not ready. Default: false."
        ),
        "base_ondemand_fallback_replicas": Field(
            Number(0, MAX_REPLICAS), "So many of the replicas are on-demand. Default: 0."
        ),
        "spot_placer": Field(
            choice("dynamic_fallback"), "Spreads spot replicas over zones: the strategy SPREAD. Default: none."
        ),
    },
    "a mapping with min_replicas",
    required=("min_replicas",),
    finish=_check_policy,
)
LOAD_BALANCER = Record(
    {
        "stream_timeout_seconds": Field(
            Number(positive=True, high=_MAX_DELAY_S, whole=False),
            f"Seconds after which an answer that sends nothing is given up. Default: {DEFAULT_STREAM_TIMEOUT_S:g}.",
        )
    }
)


def _check_tls(config: Config, _raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    missing = [name for name in ("keyfile", "certfile") if name not in config]
    if missing and "acme" not in config:
        report.add_problem((*path, missing[0]), "it is missing", "give keyfile and certfile, or acme: DOMAIN")
    return config


TLS = Record(
    {
        "keyfile": Field(TEXT, "Local file with the key, in PEM."),
        "certfile": Field(TEXT, "Local file with the certificate chain, in PEM."),
        "acme": Field(
            matching(_DOMAIN, "a domain in small letters, such as model.example.org"),
            "Domain of a certificate that the controller gets and renews by ACME, without files. Not in SkyPilot.",
        ),
    },
    "a mapping with keyfile and certfile, or with acme",
    exclusive=(("acme", "keyfile"), ("acme", "certfile")),
    finish=_check_tls,
)


def _canonical_service(config: Config, _raw: dict[Any, Any], path: FieldPath, report: Report) -> Config:
    probe = config.get("readiness_probe")
    if isinstance(probe, str):
        config["readiness_probe"] = {"path": probe}
    policy = config.get("replica_policy") or {}
    by_gpu = isinstance(policy.get("target_qps_per_replica"), Mapping)
    if by_gpu != (config.get("load_balancing_policy") == INSTANCE_AWARE):
        fix = f"give both `load_balancing_policy: {INSTANCE_AWARE}` and a mapping such as {{A100: 2.5}}, or neither"
        at = (*path, "replica_policy") if by_gpu else (*path, "load_balancing_policy")
        report.add_problem(at, "one of two settings that belong together is missing", fix)
    return config


SERVICE = Record(
    {
        "readiness_probe": Field(
            OneOf(_PATH, PROBE), "How to find out that a replica answers: a path, or a mapping with a path."
        ),
        "replicas": Field(Number(0, MAX_REPLICAS), "A fixed number of replicas. Default: 1, without `replica_policy`."),
        "replica_policy": Field(POLICY, "How many replicas there are, and on which market."),
        "load_balancing_policy": Field(
            choice(LEAST_LOAD, ROUND_ROBIN, INSTANCE_AWARE),
            "Which replica gets a request: the one with the fewest, each in turn, or the one with the fewest for its "
            f"accelerator. Default: {LEAST_LOAD}.",
        ),
        "load_balancer": Field(LOAD_BALANCER, "Settings of the proxy."),
        "ports": Field(
            OneOf(Number(1, 65535), matching("[0-9]{1,5}", "a port")),
            "The port at which the program listens on its machine. Default: the one port of `resources.ports`.",
        ),
        "tls": Field(TLS, "Certificate of the endpoint. Default: none; the endpoint is http."),
    },
    "a mapping with readiness_probe",
    required=("readiness_probe",),
    exclusive=(("replicas", "replica_policy"),),
    elsewhere={"pool": _OF_POOLS, "workers": _OF_POOLS},
    finish=_canonical_service,
)


def check_service(config: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a task that shall be a service. `config`: canonical."""
    service = config.get("service")
    if not service:
        return [Problem("service", "the task has no `service`", "say how to probe it: service: {readiness_probe: /}")]
    problems = [] if config.get("run") else [Problem("run", "a service needs a program", "give `run`")]
    options = _alternatives(config.get("resources") or {})
    try:
        service_port(config)
    except InvalidValue as error:
        problems.append(Problem("service.ports", error.message, error.fix))
    spots = {bool(option.get("use_spot")) for option in options}
    if len(spots) > 1:
        problems.append(Problem("resources", "some alternatives are spot and others are not", "use one `use_spot`"))
    policy = service.get("replica_policy") or {}
    needs_spot = [
        name
        for name in ("dynamic_ondemand_fallback", "base_ondemand_fallback_replicas", "spot_placer")
        if policy.get(name)
    ]
    if needs_spot and spots != {True}:
        where = f"service.replica_policy.{needs_spot[0]}"
        problems.append(Problem(where, "it is of use for spot replicas alone", "set `use_spot: true` in resources"))
    places = {repr({k: v for k, v in sorted(option.items()) if k != "infra"}) for option in options}
    if policy.get("spot_placer") and len(places) > 1:
        where, fix = "service.replica_policy.spot_placer", "let the alternatives of resources differ in `infra` alone"
        problems.append(Problem(where, "it chooses places for machines that are alike", fix))
    if any(option.get("job_recovery") for option in options):
        fix = "leave it out: a replica that is lost is replaced"
        problems.append(Problem("resources.job_recovery", "a service has no job_recovery", fix))
    if (config.get("num_nodes") or 1) > 1:
        problems.append(Problem("num_nodes", "a replica has one machine", "leave it out"))
    return problems


def service_port(config: Mapping[str, Any]) -> int:
    """The port at which the program of a service listens. Raises InvalidValue."""
    given = (config.get("service") or {}).get("ports")
    listed = {str(port) for option in _alternatives(config.get("resources") or {}) for port in option.get("ports", ())}
    if given is not None:
        if listed and not any(_contains(entry, int(given)) for entry in listed):
            raise InvalidValue(f"found {given}, which is not among resources.ports", "add it there")
        return int(given)
    if len(listed) != 1 or not next(iter(listed)).isdigit():
        problem = f"resources.ports has {', '.join(sorted(listed))}" if listed else "no port is given"
        raise InvalidValue(problem, "give the port of the program: `ports` of resources, or of service")
    return int(next(iter(listed)))


def _contains(entry: str, port: int) -> bool:
    first, _, last = entry.partition("-")
    return int(first) <= port <= int(last or first)


def _alternatives(resources: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for name in ("any_of", "ordered"):
        if resources.get(name):
            return [{**{k: v for k, v in resources.items() if k != name}, **option} for option in resources[name]]
    return [resources]
