"""Maps a cloud's errors to faults. Each cloud has its own table of codes, as data (`aws.faults` and so on)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

UNREACHABLE = "cannot reach"  # how the message of a fault begins if the network, or the cloud, does not answer
_CONNECTION = re.compile(r"HTTPS?Connection(?:Pool)?\(host=|<urllib3\.\S+ object at 0x")
_HOST = re.compile(r"host='(?P<host>[^']+)', port='?(?P<port>\d+)")
_CAUSE = re.compile(
    r"Failed to establish a new connection: (?:\[Errno -?\d+\] )?([^'\")]+)"
    r"|(Failed to resolve '[^']+')"
    r"|(certificate verify failed: [^('\")]+)"
    r"|((?:Read |Connect )?timed out)"
    r"|(Connection reset by peer|Remote end closed connection without response)"
)


class CloudRejected(Exception):
    """A request that is invalid before it is sent, or an error response that the SDK does not raise.

    `code` is one of the cloud's table.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class FaultRule:
    """What a code means. By default its scope is one instance type in one zone (or region) and market.

    Jobs of all users avoid the scope of any kind but GIVE_UP. What a task can cause by itself (with its image, instance
    type, disk or labels) is therefore GIVE_UP, which concerns its own job alone.
    """

    kind: FaultKind
    reason: Reason
    retry_after_s: float | None = None
    any_market: bool = False
    any_type: bool = False
    whole_region: bool = False
    whole_cloud: bool = False
    hint: str = ""  # what to do; appended to the cloud's own message


@dataclass(frozen=True)
class FaultTable:
    """A cloud's rules, in the order in which they are tried."""

    #: By the cloud's own code.
    codes: Mapping[str, FaultRule]
    #: By the start of a code; the longest match counts.
    prefixes: Mapping[str, FaultRule] = field(default_factory=dict)
    #: By the class name of the exception or of one of its base classes, for errors without a code.
    exceptions: Mapping[str, FaultRule] = field(default_factory=dict)

    def rule(self, code: str, error: Exception) -> FaultRule | None:
        if code in self.codes:
            return self.codes[code]
        fitting = [prefix for prefix in self.prefixes if code.startswith(prefix)]
        if fitting:
            return self.prefixes[max(fitting, key=len)]
        return next((self.exceptions[c.__name__] for c in type(error).__mro__ if c.__name__ in self.exceptions), None)


def to_fault(rule: FaultRule | None, code: str, message: str) -> Fault:
    """The fault of `code` with the cloud's `message`.

    Without a rule the code may mean anything. The launch may have succeeded, so the caller repeats it with its token.
    """
    message = readable(message).rstrip(" .")
    if rule is None:
        return Fault(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY, code, message)
    return Fault(
        rule.kind,
        rule.reason,
        code,
        f"{message}; {rule.hint}" if rule.hint else message,
        rule.retry_after_s,
        whole_region=rule.whole_region or rule.kind is FaultKind.AVOID_REGION,
        whole_cloud=rule.whole_cloud or rule.kind is FaultKind.AVOID_CLOUD,
        any_market=rule.any_market,
        any_instance_type=rule.any_type,
    )


def readable(message: str) -> str:
    """`message`, or `cannot reach HOST: CAUSE` if it is a connection error with the names of Python objects in it."""
    if not _CONNECTION.search(message):
        return message
    host, cause = _HOST.search(message), _CAUSE.search(message)
    where = f"{host['host']}:{host['port']}" if host else "the cloud"
    why = next(filter(None, cause.groups())) if cause else "the connection failed"
    return f"{UNREACHABLE} {where}: {why.strip()}"
