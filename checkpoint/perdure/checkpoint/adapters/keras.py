"""Keras: a callback that saves the model with its optimizer, and resumes from the newest whole checkpoint.

    callback = PerdureCheckpoint("/checkpoints", keep=3)
    model.fit(data, epochs=10, initial_epoch=callback.load(model), callbacks=[callback])

`initial_epoch` and `callbacks` are needed together: Keras counts epochs by the first.
"""

from __future__ import annotations

import json
import os
from typing import Any

import keras

from perdure.checkpoint.folders import Folder, Folders
from perdure.checkpoint.format.save_dir import SaveDir
from perdure.checkpoint.preemption import preempted
from perdure.checkpoint.save.retention.keep_rule import Keep
from perdure.checkpoint.state.arrays import require_module
from perdure.checkpoint.state.resume import random_state, set_random_state

_WEIGHTS, _STATE = "model.weights.h5", "state.json"


class PerdureCheckpoint(keras.callbacks.Callback):
    """Saves after every epoch. A notice ends the training at once, without a save inside the epoch: Keras cannot resume
    there.

    `keep`: how many checkpoints to keep, a rule, or None. A rule may use what Keras logs (`Keep(best=1,
    metric="val_loss")`). `last_result`: the folder that `load` used, and what it skipped.
    """

    def __init__(self, save_dir: SaveDir, *, keep: int | Keep | None = 5, prefix: str = "keras") -> None:
        super().__init__()
        self._folders = Folders(save_dir, keep=keep, prefix=prefix)
        self._is_cut = False  # whether the epoch ends before its last batch
        self._random: dict[str, Any] | None = None  # what `load` found, until the training begins
        self.last_result: Folder | None = None

    def load(self, model: Any) -> int:
        """Load the newest whole checkpoint into `model`, which must be built and compiled.

        Returns how many epochs it has seen: 0 if nothing was saved yet. Raises NoUsableCheckpoint and
        CheckpointUnavailable.
        """
        self.last_result = self._folders.newest()
        if self.last_result is None:
            return 0
        model.optimizer.build(model.trainable_variables)  # else Keras leaves the optimizer's state out
        model.load_weights(os.path.join(self.last_result.path, _WEIGHTS))
        with open(os.path.join(self.last_result.path, _STATE), encoding="utf-8") as file:
            state = json.load(file)
        self._random = state["random"]
        for variable, value in zip(_seeds(model), state["seeds"]):
            variable.assign(value)
        return int(state["epochs"])

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._is_cut = False
        if self._random is None:
            return
        # Only now: `fit` itself has drawn numbers since `load`.
        random, self._random = self._random, None
        if "torch" in random:
            torch = require_module("torch")
            random["torch"] = torch.tensor(random["torch"], dtype=torch.uint8)
        set_random_state(random)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if preempted():
            self.model.stop_training = True
            self._is_cut = batch + 1 != self.params.get("steps")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._is_cut:
            return
        random = random_state()
        random.pop("cuda", None)
        if "torch" in random:
            random["torch"] = random["torch"].tolist()
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        with self._folders.saving(epoch + 1, metrics=metrics) as path:
            self.model.save_weights(os.path.join(path, _WEIGHTS))
            with open(os.path.join(path, _STATE), "w", encoding="utf-8") as file:
                seeds = [keras.ops.convert_to_numpy(variable).tolist() for variable in _seeds(self.model)]
                json.dump({"epochs": epoch + 1, "random": random, "seeds": seeds}, file)


def _seeds(model: Any) -> list[Any]:
    """The states of the random layers, such as Dropout, which are no weights of the model."""
    return [variable for variable in model.variables if variable.path.endswith("/seed_generator_state")]
