"""The other libraries that `benchmarks.checkpoints` measures, as far as they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

Timed = Callable[[str], AbstractContextManager[None]]


class Peers:
    """Each measurement saves or loads `arrays` below `directory`, and adds one sample by `timed`."""

    def __init__(self, directory: str, arrays: dict[str, Any], small: dict[str, Any], timed: Timed) -> None:
        self.directory, self.arrays, self.timed = directory, arrays, timed
        self.torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
        self.stager: Any = None
        self.orbax: Any = None
        # Created once: DCP's stager identifies its buffers by the tensors.
        self.tensors = {} if self.torch is None else {n: self.torch.from_numpy(a) for n, a in arrays.items()}
        self.small_tensors = {} if self.torch is None else {n: self.torch.from_numpy(a) for n, a in small.items()}
        self.loaded = {} if self.torch is None else {n: self.torch.empty_like(t) for n, t in self.tensors.items()}

    def path_of(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def measurements(self) -> Iterator[Callable[[], None]]:
        if self.torch is not None:
            yield self.torch_save_small
            yield self.torch_save
            yield self.torch_load
            yield self.dcp_save
            yield self.dcp_load
            yield self.dcp_async
        if importlib.util.find_spec("safetensors"):
            yield self.safetensors_save
            yield self.safetensors_load
        if importlib.util.find_spec("orbax"):
            yield self.orbax_save
            yield self.orbax_load

    def torch_save_small(self) -> None:
        with self.timed("torch.save + fsync, small"), open(self.path_of("small"), "wb") as file:
            self.torch.save(self.small_tensors, file)  # type: ignore[union-attr]
            file.flush()
            os.fsync(file.fileno())

    def torch_save(self) -> None:
        with self.timed("torch.save + fsync"), open(self.path_of("torch"), "wb") as file:
            self.torch.save(self.tensors, file)  # type: ignore[union-attr]
            file.flush()
            os.fsync(file.fileno())

    def torch_load(self) -> None:
        drop_from_cache(self.path_of("torch"))
        with self.timed("torch.load, cold, not verified"):
            self.torch.load(self.path_of("torch"))  # type: ignore[union-attr]
        os.unlink(self.path_of("torch"))

    def safetensors_save(self) -> None:
        from safetensors.numpy import save_file

        with self.timed("safetensors save + fsync"):
            save_file(self.arrays, self.path_of("safetensors"))
            sync_file(self.path_of("safetensors"))

    def safetensors_load(self) -> None:
        from safetensors.numpy import load_file

        drop_from_cache(self.path_of("safetensors"))
        with self.timed("safetensors load, cold, not verified"):
            load_file(self.path_of("safetensors"))
        os.unlink(self.path_of("safetensors"))

    def dcp_save(self) -> None:
        import torch.distributed.checkpoint as dcp

        with self.timed("DCP save"):
            dcp.save(self.tensors, checkpoint_id=self.path_of("dcp"), no_dist=True)

    def dcp_load(self) -> None:
        import torch.distributed.checkpoint as dcp

        drop_folder_from_cache(self.path_of("dcp"))
        with self.timed("DCP load, cold, not verified"):
            dcp.load(self.loaded, checkpoint_id=self.path_of("dcp"), no_dist=True)
        shutil.rmtree(self.path_of("dcp"))

    def dcp_async(self) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        if self.stager is None:
            options = StagingOptions(
                use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
            self.stager = DefaultStager(options)
        with self.timed("DCP async save, blocking"):
            future = dcp.async_save(
                self.tensors, checkpoint_id=self.path_of("dcp-async"), no_dist=True, async_stager=self.stager
            )
        getattr(future, "upload_completion", future).result()
        shutil.rmtree(self.path_of("dcp-async"))

    def orbax_save(self) -> None:
        import jax.numpy as jnp
        import orbax.checkpoint as ocp

        if self.orbax is None:  # JAX's arrays never change, so Orbax copies nothing before it returns
            self.orbax = ocp.StandardCheckpointer(), {name: jnp.asarray(a) for name, a in self.arrays.items()}
        saver, arrays = self.orbax
        with self.timed("Orbax save, committed"):
            with self.timed("Orbax save, blocking"):
                saver.save(self.path_of("orbax"), arrays)
            saver.wait_until_finished()

    def orbax_load(self) -> None:
        saver, _ = self.orbax
        drop_folder_from_cache(self.path_of("orbax"))
        with self.timed("Orbax load, cold, not verified"):
            saver.restore(self.path_of("orbax"))
        shutil.rmtree(self.path_of("orbax"))


def sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def drop_folder_from_cache(folder: str) -> None:
    for directory, _, names in os.walk(folder):
        for name in names:
            drop_from_cache(os.path.join(directory, name))


def drop_from_cache(path: str) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
