"""What was refused of late, without what says nothing new: in a drought ten thousand jobs hear the same of a zone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from perdure.recovery.market import Refusal

# One that runs out no more than so much later than what is known, in seconds, changes nothing.
_SAME_S = 1.0


class _Bout:
    """Refusals of one scope and kind that ran side by side: all but the first were begun before that one ran out."""

    __slots__ = ("first", "latest", "longest")

    def __init__(self, first: Refusal) -> None:
        self.first = self.latest = self.longest = first

    def kept(self) -> Iterator[Refusal]:
        yield from dict.fromkeys((self.first, self.longest, self.latest))


class RefusalMemory:
    """Refusals in the order in which they came. Of a bout three are kept: the first, by which it counts as one try in
    vain, the longest, which says until when, and the latest, which says when it was tried."""

    def __init__(self) -> None:
        self._bouts: dict[Hashable, list[_Bout]] = {}

    def add(self, refusal: Refusal) -> bool:
        """Whether that changed anything."""
        if not self.is_news(refusal):
            return False
        bouts = self._bouts.setdefault(_scope(refusal), [])
        if not bouts or refusal.at >= bouts[-1].first.until:
            bouts.append(_Bout(refusal))
            return True
        bout = bouts[-1]
        bout.latest = max(bout.latest, refusal, key=lambda r: r.at)
        bout.longest = max(bout.longest, refusal, key=lambda r: r.until)
        return True

    def is_news(self, refusal: Refusal) -> bool:
        """Whether `add` would change anything."""
        bouts = self._bouts.get(_scope(refusal))
        if not bouts or refusal.at >= bouts[-1].first.until:
            return True
        bout = bouts[-1]
        return refusal.until > bout.longest.until + _SAME_S or refusal.at > bout.latest.at + _SAME_S

    def forget(self, before: float) -> None:
        """Forget those that had run out by `before`."""
        for scope, bouts in list(self._bouts.items()):
            left = [bout for bout in bouts if bout.longest.until > before]
            if left:
                self._bouts[scope] = left
            else:
                del self._bouts[scope]

    def __iter__(self) -> Iterator[Refusal]:
        return (refusal for bouts in self._bouts.values() for bout in bouts for refusal in bout.kept())


def _scope(refusal: Refusal) -> Hashable:
    r = refusal
    return (r.cloud, r.region, r.zone, r.instance_type, r.market, r.kind, r.from_preemption)
