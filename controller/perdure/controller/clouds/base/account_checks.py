"""What `perdure check` reports about a cloud account: identity, permissions, usable regions and quotas.

A check never buys, creates or changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar, runtime_checkable

from perdure.controller.clouds.base.faults import UNREACHABLE
from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.reasons import Reason

MAX_CONCURRENT_CHECKS = 16
MAX_REGIONS_NAMED = 4
_NETWORK_FIX = "see that the controller's machine reaches the cloud: its network, proxy and firewall"

T = TypeVar("T")
R = TypeVar("R")


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"  # some launches cannot succeed
    ERROR = "error"  # no launch can succeed
    UNKNOWN = "unknown"  # the check itself failed; launches may still succeed


@dataclass(frozen=True)
class Finding:
    """One result of a check."""

    subject: str  # credentials, permissions, regions, quotas or prices
    severity: Severity
    text: str
    fix: str | None = None  # what to do; None if nothing is wrong


@runtime_checkable
class Checkable(Protocol):
    """A cloud whose account can be checked."""

    def check(self) -> Sequence[Finding]:
        """All findings, good and bad. Calls the cloud, which takes seconds. Does not raise."""
        ...


@dataclass(frozen=True)
class Permission:
    """A permission that the controller uses."""

    name: str
    purpose: str  # completes "NAME is missing: …"
    is_required: bool = True  # no launch succeeds without it


@dataclass(frozen=True)
class Quota:
    """How much of `name` a region allows."""

    name: str
    region: str
    limit: float
    used: float | None = None  # None: the cloud does not report it

    @property
    def remaining(self) -> float:
        return max(0.0, self.limit - (self.used or 0.0))


@dataclass(frozen=True)
class Check:
    """A check of one subject."""

    subject: str
    run: Callable[[], Iterable[Finding]]
    fix: str  # what to do if the cloud rejects the check itself


def run_checks(credentials: Check, others: Sequence[Check], classify: Callable[[Exception], Fault]) -> list[Finding]:
    """The findings of all checks. If `credentials` finds a problem, the others are skipped."""
    findings = _run(credentials, classify)
    if any(finding.severity is not Severity.OK for finding in findings):
        return findings
    return [*findings, *parallel(lambda check: _run(check, classify), others)]


def _run(check: Check, classify: Callable[[Exception], Fault]) -> list[Finding]:
    try:
        return list(check.run())
    except Exception as error:  # noqa: BLE001 - a check that fails is a finding
        fault = classify(error)
        is_fatal = check.subject == "credentials" and fault.reason is Reason.BAD_CREDENTIALS
        severity = Severity.ERROR if is_fatal else Severity.UNKNOWN
        fix = _NETWORK_FIX if fault.message.startswith((UNREACHABLE, "Could not connect")) else check.fix
        return [Finding(check.subject, severity, f"could not be checked: {fault.message}", fix)]


def parallel(function: Callable[[T], Iterable[R]], arguments: Iterable[T]) -> list[R]:
    """Call `function` for each argument, in parallel. The results, concatenated in the arguments' order."""
    with ThreadPoolExecutor(MAX_CONCURRENT_CHECKS, thread_name_prefix="check") as pool:
        results = pool.map(lambda argument: list(function(argument)), arguments)
        return [item for result in results for item in result]


def permission_findings(required: Collection[Permission], missing: Collection[str], fix: str) -> Iterator[Finding]:
    """One finding per missing permission, and one for all that are granted."""
    granted = sum(permission.name not in missing for permission in required)
    if granted:
        yield Finding("permissions", Severity.OK, f"{granted} of {len(required)} permissions in use are granted")
    for permission in required:
        if permission.name in missing:
            severity = Severity.ERROR if permission.is_required else Severity.WARNING
            yield Finding("permissions", severity, f"{permission.name} is missing: {permission.purpose}", fix)


def quota_findings(quotas: Sequence[Quota], fix: str) -> Iterator[Finding]:
    """One finding per kind of quota: the regions that have some left, or that no region has."""
    for name in dict.fromkeys(quota.name for quota in quotas):
        same = [quota for quota in quotas if quota.name == name]
        usable = sorted((quota for quota in same if quota.remaining > 0), key=lambda quota: -quota.remaining)
        if usable:
            yield Finding("quotas", Severity.OK, f"{name}: {_region_summary(usable, len(same) - len(usable))}")
        else:
            where = same[0].region if len(same) == 1 else f"any of {len(same)} regions"
            spent = "; all of it is in use" if any(quota.limit > 0 for quota in same) else ""
            yield Finding("quotas", Severity.WARNING, f"{name}: nothing left in {where}{spent}", fix)


def _region_summary(usable: Sequence[Quota], num_exhausted: int) -> str:
    named = [_remaining(quota) for quota in usable[:MAX_REGIONS_NAMED]]
    more = [f"some in {len(usable) - MAX_REGIONS_NAMED} more"] if len(usable) > MAX_REGIONS_NAMED else []
    none = [f"nothing in {num_exhausted} more"] if num_exhausted else []
    return ", ".join([*named, *more, *none])


def _remaining(quota: Quota) -> str:
    if quota.used is None:
        return f"{quota.remaining:g} in {quota.region}"
    return f"{quota.remaining:g} of {quota.limit:g} left in {quota.region}"
