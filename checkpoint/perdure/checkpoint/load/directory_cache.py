"""What this process has read of a directory of checkpoints and need not read again."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass, field

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.format.manifest import Manifest
from perdure.checkpoint.load.saved_step import Checkpoint

_RECENT_COUNT = 8


@dataclass
class DirectoryCache:
    """The cache of one save_dir. Unless a comment says otherwise, sets hold names of manifests."""

    #: Held during a save. The files that a call wrote can be identified only while no other call writes.
    lock: threading.RLock = field(default_factory=threading.RLock)
    #: Names of the files beside and including the manifests, as last listed, with this process's changes since.
    names: set[str] = field(default_factory=set)
    #: Manifests that were read or written so far, by name. The content under a name never changes.
    manifests: dict[str, Manifest] = field(default_factory=dict)
    #: The last manifests that this process committed.
    recent: deque[Manifest] = field(default_factory=lambda: deque(maxlen=_RECENT_COUNT))
    #: Committed by this process, and not yet seen in the bucket.
    pending_upload: deque[Manifest] = field(default_factory=deque)
    #: Seen in the bucket.
    durable: set[str] = field(default_factory=set)
    #: Refused by a load.
    damaged: set[str] = field(default_factory=set)
    #: Paths of files for which the warning about overwriting was logged.
    warned: set[str] = field(default_factory=set)
    warned_of_unknown_durability: bool = False
    #: Whether this process has searched the directory for a step to load.
    was_searched: bool = False
    #: Patterns of the names of files (`step_names.templates`) → two of the steps at which a file had that name.
    templates: dict[str, set[int]] = field(default_factory=dict)

    #: Series → the Checkpointer that saved there last, and the step.
    savers: dict[str, tuple[weakref.ref[object], int]] = field(default_factory=dict)
    #: Checkpointers of which another one has saved the last step anew.
    replaced: weakref.WeakSet[object] = field(default_factory=weakref.WeakSet)

    def enter_saver(self, prefix: str, saver: object, step: int) -> None:
        """`saver` is about to save `step`. Raises CheckpointError if another one has saved its last step anew: two that
        are in use would replace each other's steps."""
        if saver in self.replaced:
            raise CheckpointError(
                f"step {step} was not saved: another Checkpointer of this program saves the same steps there under the "
                f"prefix {prefix!r}, and has replaced the last one of this. Give each a prefix of its own."
            )
        last, last_step = self.savers.get(prefix, (lambda: None, None))
        earlier = last()
        if earlier is not None and earlier is not saver and last_step == step:
            self.replaced.add(earlier)
        self.savers[prefix] = (weakref.ref(saver), step)

    def record_templates(self, step: int, templates: set[str]) -> None:
        for template in templates:
            steps = self.templates.setdefault(template, set())
            if len(steps) < 2:
                steps.add(step)

    def is_damaged(self, checkpoint: Checkpoint) -> bool:
        return any(one.name in self.damaged for one in checkpoint.manifests)

    def mark_damaged(self, checkpoint: Checkpoint) -> None:
        self.damaged.update(one.name for one in checkpoint.manifests)

    def mark_whole(self, checkpoint: Checkpoint) -> None:
        self.damaged.difference_update(one.name for one in checkpoint.manifests)


_caches: dict[str, DirectoryCache] = {}
_lock = threading.Lock()


def for_directory(root: str) -> DirectoryCache:
    """The one cache of the directory with this absolute path."""
    with _lock:
        return _caches.setdefault(root, DirectoryCache())
