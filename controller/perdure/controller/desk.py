"""Where the rest of the daemon meets the reconcile loop: what is asked of it, and what it can tell. From any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from sqlalchemy import Engine

from perdure.controller import turns
from perdure.controller.agenda import Agenda
from perdure.controller.clock import Clock
from perdure.controller.dispatch import Performed, Seen
from perdure.controller.keyring import AttemptKey
from perdure.controller.market import Market
from perdure.controller.outage import Outage
from perdure.controller.store.intents import Intent
from perdure.controller.store.jobs import Claim
from perdure.controller.turns import Adopt, Look, Missing, Owned, Recheck, TryLater, Turn, resolve
from perdure.recovery import events
from perdure.recovery.directive import Directive
from perdure.recovery.history import at_risk
from perdure.recovery.job import JobView

# One statement can not name any number of jobs.
_MOST_ADOPTED = 1000

OnDirective = Callable[[AttemptKey, Directive], None]
Timed = Turn | Intent | Adopt | Recheck | Missing
Item = Turn | Adopt | Recheck | Missing | Look | TryLater


class Desk:
    """`on_directive`: told what an attempt's nodes shall do from now on. `forward`: given turns of jobs that are not in
    this daemon's hands. `speed`: of `clock` beside the world."""

    def __init__(self, database: Engine, clock: Clock, market: Market, speed: float) -> None:
        self._clock = clock
        self._market = market
        self._speed = speed
        self._agenda: Agenda[Item, Timed] = Agenda(clock, speed, turns.presses)
        self.backlog = self._agenda.backlog
        self._jobs: dict[int, Owned] = {}
        self._outage = Outage(database, clock, speed)
        self.on_directive: OnDirective = lambda _key, _directive: None
        self.forward: Callable[[Turn], None] = resolve

    def post(self, turn: Turn) -> Future[None]:
        """Have `turn` taken; the future is answered when it is recorded. One for a job that is not ours goes to
        `forward`, which answers it."""
        turn, done = turn.awaited()
        self._agenda.put(turn)
        return done

    def tell(self, job_id: int, event: events.Event) -> None:
        self._agenda.put(Turn(job_id, event))

    def adopt(self, claims: Sequence[Claim], views: Mapping[int, JobView] | None = None) -> Future[None]:
        """Take up jobs that were claimed: their views, their open intents, their wake times.

        `views`: of all of them, where they were just accepted; they are not read then.
        """
        parts = [tuple(claims[i : i + _MOST_ADOPTED]) for i in range(0, len(claims), _MOST_ADOPTED)]
        return [self._command(Adopt(part, views or None)) for part in parts or [()]][-1]

    def recheck(self) -> Future[None]:
        """Let go of jobs that others have claimed, before anything more is done for them."""
        return self._command(Recheck())

    def _command(self, command: Adopt | Recheck) -> Future[None]:
        self._agenda.put(command)
        return command.done

    def answer(self, answer: Performed | Seen) -> None:
        self._agenda.put(turns.turn_of(answer))

    def at_risk(self, key: AttemptKey, rank: int) -> None:
        """A cloud says that a node of the attempt is more likely than usual to be taken: evidence, no order."""
        if (attempt := turns.attempt_of(self.view(key[0]), key)) is not None:
            self._market.advise([at_risk(attempt.offer.key, self._clock.now())])
            self.post(turns.risk_noted(key, rank))

    def look_later(self, key: AttemptKey) -> None:
        """Have the cloud asked about an attempt's machines."""
        self._agenda.put(Look(key))

    def database_is_away(self) -> None:
        """Decide nothing before it is back: what nodes had to say could not be heard."""
        self._outage.began()

    def was_deaf_within(self, seconds: float) -> bool:
        """Whether nodes could not be heard, for want of the database, at some time in the world's last `seconds`."""
        return self._outage.was_on_within(seconds * self._speed)

    def view(self, job_id: int) -> JobView | None:
        owned = self._jobs.get(job_id)
        return owned.view if owned else None

    def jobs(self) -> int:
        """How many there are in this daemon's hands."""
        return len(self._jobs)

    def owned_views(self) -> list[JobView]:
        return [owned.view for owned in list(self._jobs.values())]

    def directive_of(self, key: AttemptKey) -> Directive | None:
        """What the attempt's nodes shall do: STOP for one that is gone. None: the job is not in this daemon's hands."""
        return turns.directive_of(view, key) if (view := self.view(key[0])) else None
