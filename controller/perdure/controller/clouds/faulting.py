"""What a cloud's errors mean: the machinery. Each cloud keeps its own table of codes, as data (`aws.faults`, …)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.controller.clouds.base import Fault
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason


class Refused(Exception):
    """A request that is not even sent, or an answer of the cloud's that is no exception of its SDK's.

    `code` is one of its cloud's table.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Row:
    """What a code means. Unless it says more, it concerns one instance type in one zone (or region) and market.

    `hint`: what to do, added to the cloud's own message.
    """

    kind: FaultKind
    reason: Reason
    retry_after_s: float | None = None
    any_market: bool = False
    any_type: bool = False
    whole_region: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """`codes`: by the cloud's own code. `prefixes`: for codes that come in many kinds; the longest that fits counts.
    `exceptions`: by the name of an exception's class, or of one that it is a kind of, where the cloud has not spoken.
    """

    codes: Mapping[str, Row]
    prefixes: Mapping[str, Row] = field(default_factory=dict)
    exceptions: Mapping[str, Row] = field(default_factory=dict)

    def row(self, code: str, error: Exception) -> Row | None:
        if code in self.codes:
            return self.codes[code]
        fitting = [prefix for prefix in self.prefixes if code.startswith(prefix)]
        if fitting:
            return self.prefixes[max(fitting, key=len)]
        return next((self.exceptions[c.__name__] for c in type(error).__mro__ if c.__name__ in self.exceptions), None)


def fault(row: Row | None, code: str, told: str) -> Fault:
    """What to do about `code`, of which the cloud `told` more.

    Without a row it may stand for anything: the launch may have happened, so its token is asked for again.
    """
    told = told.rstrip(" .")
    if row is None:
        return Fault(FaultKind.FIND_OUT, Reason.NO_CAPACITY, code, told)
    return Fault(
        row.kind,
        row.reason,
        code,
        f"{told}; {row.hint}" if row.hint else told,
        row.retry_after_s,
        whole_region=row.whole_region or row.kind is FaultKind.AVOID_REGION,
        whole_cloud=row.kind is FaultKind.AVOID_CLOUD,
        any_market=row.any_market,
        any_instance_type=row.any_type,
    )
