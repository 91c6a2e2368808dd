"""What this process knows about a directory of checkpoints and need not find out again."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.manifest import Manifest

_RECENT = 8


@dataclass
class Memory:
    """Of one save_dir. Sets hold names of manifests.

    `lock` makes saves take turns: what a call wrote can only be told while no other call writes. `recent`: the last
    manifests that this process committed. `manifests`: those read or written so far, by name; a name's content never
    changes. `damaged`: refused by a load. `durable`: seen in the bucket. `unseen`: committed by this process, and
    not yet seen in the bucket. `warned`: files that a warning was given for.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    recent: deque[Manifest] = field(default_factory=lambda: deque(maxlen=_RECENT))
    manifests: dict[str, Manifest] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    durable: set[str] = field(default_factory=set)
    unseen: deque[Manifest] = field(default_factory=deque)
    warned: set[str] = field(default_factory=set)
    warned_of_unknown_durability: bool = False

    def is_damaged(self, checkpoint: Checkpoint) -> bool:
        return any(one.name in self.damaged for one in checkpoint.manifests)

    def refuse(self, checkpoint: Checkpoint) -> None:
        self.damaged.update(one.name for one in checkpoint.manifests)

    def accept(self, checkpoint: Checkpoint) -> None:
        self.damaged.difference_update(one.name for one in checkpoint.manifests)


_memories: dict[str, Memory] = {}
_lock = threading.Lock()


def of(root: str) -> Memory:
    """The one memory of the directory with this absolute path."""
    with _lock:
        return _memories.setdefault(root, Memory())
