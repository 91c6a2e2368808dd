"""What `perdure check` finds out of a cloud beyond whether there are credentials: who they are, what they allow, where
machines can be bought, and how many. Nothing is bought, made or changed by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar, runtime_checkable

from perdure.controller.clouds.base import Fault
from perdure.recovery.reasons import Reason

LOOKS_AT_ONCE = 16
PLACES_NAMED = 4

T = TypeVar("T")
Found = TypeVar("Found")


class Outcome(StrEnum):
    OK = "ok"
    LIMITS = "limits"  # some launches can not succeed, others can
    FAILS = "fails"  # no launch can succeed
    UNKNOWN = "unknown"  # it could not be looked at, which need not mean anything for launches


@dataclass(frozen=True)
class Finding:
    """`about`: credentials, permissions, regions, quotas or prices. `fix`: what to do; None where all is well."""

    about: str
    outcome: Outcome
    text: str
    fix: str | None = None


@runtime_checkable
class Checkable(Protocol):
    """A cloud whose set-up can be looked through."""

    def check(self) -> Sequence[Finding]:
        """All that was found, good and bad. Asks the cloud, which takes seconds; raises nothing."""
        ...


@dataclass(frozen=True)
class Permission:
    """`lets`: what is done with it. `is_needed`: no launch succeeds without it."""

    name: str
    lets: str
    is_needed: bool = True


@dataclass(frozen=True)
class Quota:
    """How much of `name` a region allows; `used` is None where the cloud does not tell."""

    name: str
    region: str
    limit: float
    used: float | None = None

    @property
    def left(self) -> float:
        return max(0.0, self.limit - (self.used or 0.0))


@dataclass(frozen=True)
class Look:
    """`fix`: what to do when it is refused."""

    about: str
    find: Callable[[], Iterable[Finding]]
    fix: str


def look_through(credentials: Look, rest: Sequence[Look], classify: Callable[[Exception], Fault]) -> list[Finding]:
    """All that is found. With credentials that are good for nothing, there is nothing more to look at."""
    found = _looked(credentials, classify)
    if any(one.outcome is not Outcome.OK for one in found):
        return found
    return [*found, *side_by_side(lambda look: _looked(look, classify), rest)]


def _looked(look: Look, classify: Callable[[Exception], Fault]) -> list[Finding]:
    try:
        return list(look.find())
    except Exception as error:  # noqa: BLE001 - a look that fails is a finding
        fault = classify(error)
        is_fatal = look.about == "credentials" and fault.reason is Reason.BAD_CREDENTIALS
        outcome = Outcome.FAILS if is_fatal else Outcome.UNKNOWN
        return [Finding(look.about, outcome, f"could not be looked at: {fault.message}", look.fix)]


def side_by_side(look: Callable[[T], Iterable[Found]], over: Iterable[T]) -> list[Found]:
    """What is found by looking at each, in their order."""
    with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="check") as pool:
        return [found for some in pool.map(lambda one: list(look(one)), over) for found in some]


def permissions(wanted: Collection[Permission], missing: Collection[str], fix: str) -> Iterator[Finding]:
    """A line for each that is missing, and one for all that are there."""
    there = sum(one.name not in missing for one in wanted)
    if there:
        yield Finding("permissions", Outcome.OK, f"{there} of {len(wanted)} that are used are there")
    for one in wanted:
        if one.name in missing:
            outcome = Outcome.FAILS if one.is_needed else Outcome.LIMITS
            yield Finding("permissions", outcome, f"{one.name} is missing: {one.lets}", fix)


def quotas(told: Sequence[Quota], fix: str) -> Iterator[Finding]:
    """A line for each kind of quota: where there is something left of it, or that there is nothing anywhere."""
    for name in dict.fromkeys(one.name for one in told):
        here = [one for one in told if one.name == name]
        some = sorted((one for one in here if one.left > 0), key=lambda one: -one.left)
        if some:
            yield Finding("quotas", Outcome.OK, f"{name}: {_places(some, len(here) - len(some))}")
        else:
            where = here[0].region if len(here) == 1 else f"any of {len(here)} regions"
            spent = "; all of it is in use" if any(one.limit > 0 for one in here) else ""
            yield Finding("quotas", Outcome.LIMITS, f"{name}: nothing left in {where}{spent}", fix)


def _places(some: Sequence[Quota], without: int) -> str:
    named = [
        f"{one.left:g} in {one.region}" if one.used is None else f"{one.left:g} of {one.limit:g} left in {one.region}"
        for one in some[:PLACES_NAMED]
    ]
    more = [f"some in {len(some) - PLACES_NAMED} more"] if len(some) > PLACES_NAMED else []
    none = [f"nothing in {without} more"] if without else []
    return ", ".join([*named, *more, *none])
