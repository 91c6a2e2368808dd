"""Which jobs are this daemon's: the lease is renewed, the jobs of the dead are claimed, and what was lost is let go."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import structlog

from perdure.controller.leases import Lease
from perdure.controller.reconcile import Reconciler
from perdure.controller.store.database import UNAVAILABLE

log = structlog.get_logger(__name__)


class Ownership:
    """Ticked every third of the lease, and when somebody says that there are jobs to be had."""

    def __init__(self, lease: Lease, reconciler: Reconciler) -> None:
        self._lease = lease
        self._reconciler = reconciler
        self._one_at_a_time = threading.Lock()
        self._claims_from = 0.0
        self._has_ended = False

    def begin(self) -> Future[None]:
        """Claim what can be claimed at a start, and have it taken up before anything that is asked from now on."""
        self._lease.confirm(self._lease.renew())  # starting may have taken a while
        self._lease.claim_all()
        return self._reconciler.adopt(self._lease.own())

    def end(self) -> None:
        """Give everything back."""
        with self._one_at_a_time:
            self._has_ended = True
            try:
                self._lease.end()
            except UNAVAILABLE as error:
                log.warning("lease.not_given_back", error=str(error))

    def tick(self) -> None:
        """Raises nothing: a database that is away is asked again at the next tick."""
        with self._one_at_a_time:
            try:
                if not self._has_ended:
                    self._renew()
                    self._claim()
            except (*UNAVAILABLE, TimeoutError) as error:
                log.warning("lease.not_renewed", is_held=self._lease.is_held(), error=str(error))
                self._reconciler.database_is_away()

    def _renew(self) -> None:
        has_lapsed = not self._lease.is_held()
        asked_at = self._lease.renew()
        if has_lapsed:
            # Frozen, or without a database: others may have taken jobs over, and must be seen to have, before anything
            # is done. They may have had no database either, and be about to renew: for one lease, leave them theirs.
            log.warning("lease.lapsed")
            self._reconciler.recheck().result(self._lease.length_s)
            self._claims_from = self._lease.monotonic() + self._lease.length_s
        self._lease.confirm(asked_at)

    def _claim(self) -> None:
        if self._lease.monotonic() < self._claims_from:
            return
        claimed = self._lease.claim_all()
        if claimed:
            log.info("lease.claimed", jobs=len(claimed))
        # All of them, not the new ones alone: what was accepted by a call whose answer was lost is ours, too.
        self._reconciler.adopt(self._lease.own())
