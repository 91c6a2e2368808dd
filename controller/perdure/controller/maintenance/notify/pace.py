"""How many messages a channel gets: events one by one in calm times, digests in a storm. Pure: callers pass the time.

Events are held back for a moment, so that a burst is seen as one. Two are sent one by one. More become one digest, and
then the channel is quiet for a while: whatever happens meanwhile becomes the next digest. So a thousand preemptions
within a minute become three messages at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

LINGER_S = 2.0
MAX_SINGLES = 2
QUIET_S = 60.0
MAX_DIGEST = 1000


class SendAs(Enum):
    NOTHING = auto()  # not yet
    SINGLES = auto()
    DIGEST = auto()


@dataclass
class ChannelPace:
    """The pace of one channel. `digest_s`: collect events for so long, instead. All times in seconds."""

    digest_s: float | None = None
    quiet_until: float = 0.0

    def choose(self, number: int, oldest_at: float, now: float) -> SendAs:
        """What to do with `number` events that are due; the oldest happened at `oldest_at`."""
        if number == 0 or now < self.quiet_until or now < oldest_at + (self.digest_s or LINGER_S):
            return SendAs.NOTHING
        return SendAs.DIGEST if number > (1 if self.digest_s else MAX_SINGLES) else SendAs.SINGLES

    def on_sent(self, sent: SendAs, now: float) -> None:
        if sent is SendAs.DIGEST:
            self.quiet_until = now + QUIET_S
        elif sent is SendAs.SINGLES:
            self.quiet_until = now + LINGER_S
