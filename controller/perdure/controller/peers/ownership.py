"""Keeps this daemon's jobs: renews the lease, claims the jobs of dead daemons, and drops jobs that were lost.

Claimed jobs are handed to `reconcile.inbox`, which adopts them. `lease` is the lease itself, and
`store.records.job_claims` the claims, with the guard on every write.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import structlog

from perdure.controller.peers.lease import Lease
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.store.engine.database import UNAVAILABLE

log = structlog.get_logger(__name__)


class JobOwnership:
    """`tick` runs every third of the lease's duration, and when another daemon notifies that jobs can be claimed."""

    def __init__(self, lease: Lease, inbox: ReconcilerInbox) -> None:
        self._lease = lease
        self._inbox = inbox
        self._lock = threading.Lock()
        self._may_claim_at = 0.0
        self._is_stopped = False

    def start(self) -> Future[None]:
        """Claim jobs, and let the reconciler adopt them before it handles any later request."""
        self._lease.mark_held(self._lease.renew())  # starting may have taken a while
        self._lease.claim_all()
        return self._inbox.adopt(self._lease.owned_claims())

    def stop(self) -> None:
        """Release the lease, and all jobs with it."""
        with self._lock:
            self._is_stopped = True
            try:
                self._lease.release()
            except UNAVAILABLE as error:
                log.warning("lease.release_failed", error=str(error))

    def tick(self) -> None:
        """Renew the lease and claim jobs. Raises nothing: the next tick retries if the database is unavailable."""
        with self._lock:
            try:
                if not self._is_stopped:
                    self._renew()
                    self._claim()
            except (*UNAVAILABLE, TimeoutError) as error:
                log.warning("lease.not_renewed", is_held=self._lease.is_held(), error=str(error))
                self._inbox.report_outage()

    @property
    def may_claim(self) -> bool:
        """Whether this daemon holds its lease and claims jobs: not for one lease's duration after the lease lapsed."""
        return self._lease.is_held() and self._lease.monotonic() >= self._may_claim_at

    def _renew(self) -> None:
        has_lapsed = not self._lease.is_held()
        requested_at = self._lease.renew()
        if has_lapsed:
            # This process was frozen, or had no database. Other daemons may have claimed some of its jobs, which must
            # be dropped before anything is done. If they had no database either, give them time to renew their leases.
            log.warning("lease.lapsed")
            self._inbox.recheck().result(self._lease.duration_s)
            self._may_claim_at = self._lease.monotonic() + self._lease.duration_s
        self._lease.mark_held(requested_at)

    def _claim(self) -> None:
        if not self.may_claim:
            return
        claimed = self._lease.claim_all()
        if claimed:
            log.info("lease.claimed", jobs=len(claimed))
        # All claims, not only the new ones: a job whose commit was reported as lost may be this daemon's, too.
        self._inbox.adopt(self._lease.owned_claims())
