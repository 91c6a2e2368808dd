"""An interrupted run computes the same numbers as one that was not interrupted, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.frameworks.programs import needs, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

Runs = dict[str, Any]  # name → what the whole run returned, or the two parts of an interrupted one

LIGHTNING = """
    import json, os, pathlib, signal, sys, torch
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.utilities.exceptions import SIGTERMException
    from perdure.checkpoint import Resumable, preemption
    from perdure.checkpoint.adapters.lightning import PerdureCheckpointIO, SaveAtNotice, last_checkpoint
    points = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    class Line(pl.LightningModule):
        def __init__(self, terminate_at):
            super().__init__()
            self.layer, self.dropout = torch.nn.Linear(4, 1), torch.nn.Dropout(0.5)
            self.terminate_at, self.losses = terminate_at, []
        def training_step(self, batch, index):
            (x,) = batch
            loss = torch.nn.functional.mse_loss(self.layer(self.dropout(x)).squeeze(-1), x.sum(1))
            self.losses.append(float(loss.detach()))
            if self.trainer.global_step == self.terminate_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return loss
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)
    def train(root, *, epochs=3, max_steps=-1, every=None, terminate_at=None, resumable=True):
        pl.seed_everything(0, verbose=False)
        preemption._cache = preemption._NoticeCache()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=8, shuffle=True)
        when = {"every_n_train_steps": every} if every else {"every_n_epochs": 1}
        trainer = pl.Trainer(
            max_epochs=epochs, max_steps=max_steps, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, plugins=[PerdureCheckpointIO()],
            callbacks=[ModelCheckpoint(root, save_top_k=-1, **when), SaveAtNotice(root)])
        model, resumed = Line(terminate_at), last_checkpoint(root)
        try:
            trainer.fit(model, Resumable(loader) if resumable else loader, ckpt_path=resumed)
        except SIGTERMException:
            pass
        return {"resumed": resumed and os.path.basename(resumed), "step": trainer.global_step,
                "epoch": trainer.current_epoch, "losses": model.losses, "weights": model.layer.weight.tolist()}
    root = pathlib.Path(sys.argv[1])
    output = {"whole": train(root / "whole")}
    for name, first, second in [
        ("end of an epoch", {"epochs": 1}, {}),
        ("end of an epoch, plain loader", {"epochs": 1, "resumable": False}, {"resumable": False}),
        ("inside an epoch", {"max_steps": 14, "every": 7}, {"every": 7}),
        ("last batch of an epoch", {"max_steps": 20, "every": 10}, {"every": 10}),
        ("SIGTERM", {"terminate_at": 24, "every": 10}, {"every": 10}),
        ("SIGTERM at the last batch", {"terminate_at": 19, "every": 10}, {"every": 10}),
    ]:
        output[name] = [train(root / name, **first), train(root / name, **second)]
    print(json.dumps(output))
"""


@pytest.fixture(scope="module")
def lightning_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    needs("torch", "lightning")
    runs: Runs = run(LIGHTNING, tmp_path_factory.mktemp("lightning"))
    return runs


@pytest.mark.parametrize(
    ("name", "resumed", "step"),
    [
        ("end of an epoch", "epoch=0-step=10.ckpt", 10),
        ("end of an epoch, plain loader", "epoch=0-step=10.ckpt", 10),
        ("inside an epoch", "epoch=1-step=14.ckpt", 14),
        ("last batch of an epoch", "epoch=1-step=20.ckpt", 20),
        ("SIGTERM", "notice-step=25.ckpt", 25),
        ("SIGTERM at the last batch", "notice-step=20.ckpt", 20),
    ],
)
def test_lightning__resumes_to_the_last_bit(lightning_runs: Runs, name: str, resumed: str, step: int) -> None:
    whole, (cut, again) = lightning_runs["whole"], lightning_runs[name]
    assert (cut["step"], again["resumed"]) == (step, resumed)
    assert (again["step"], again["epoch"]) == (30, 3)
    assert again["losses"] == whole["losses"][step:]
    assert again["weights"] == whole["weights"]


LOADERS = """
    import json, pathlib, sys, torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from perdure.checkpoint import Checkpointer, Resumable, random_state, set_random_state
    points = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    def train(root, steps, make):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        batches, step, losses = Resumable(make(points)), 0, []
        with Checkpointer(root, every=1) as checkpointer:
            state = {"layer": layer, "optimizer": optimizer, "data": batches}
            if restored := checkpointer.load(into={**state, "step": 0, "random": None}):
                step = restored["step"]
                set_random_state(restored["random"])
            while step < steps:
                for x in batches:
                    x = torch.nn.functional.dropout(x)
                    loss = torch.nn.functional.mse_loss(layer(x).squeeze(-1), x.sum(1))
                    optimizer.zero_grad(); loss.backward(); optimizer.step()
                    losses.append(float(loss.detach()))
                    step += 1
                    checkpointer.save(step, {**state, "step": step, "random": random_state()})
                    if step == steps:
                        break
        return losses
    root, output = pathlib.Path(sys.argv[1]), {}
    for workers in (0, 2):
        def make(data):
            return StatefulDataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
        whole = train(root / f"whole-{workers}", 24, make)
        parts = [train(root / f"cut-{workers}", steps, make) for steps in (3, 10, 17, 24)]
        output[workers] = [whole, sum(parts, [])]
    print(json.dumps(output))
"""


def test_stateful_data_loader__resumes_to_the_last_bit(tmp_path: Path) -> None:
    needs("torch", "torchdata")
    for whole, parts in run(LOADERS, tmp_path).values():
        assert len(whole) == 24
        assert parts == whole
