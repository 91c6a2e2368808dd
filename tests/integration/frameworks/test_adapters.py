"""The adapters with the real frameworks, each in a process of its own; skipped where a framework is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def needs(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def run(program: str, *arguments: object, **env: str) -> Any:
    """The last line that the program prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


TRAINER = """
    import json, logging, sys, torch
    from transformers import Trainer, TrainingArguments, TrainerCallback
    from holdfast.checkpoint.adapters.huggingface import HoldfastCallback, last_checkpoint
    output, stop_at = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels):
            out = self.layer(x).squeeze(-1)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}
    points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    data = [{"x": p, "labels": p.sum()} for p in points]
    class Leave(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == stop_at:
                control.should_training_stop = True
    args = TrainingArguments(output, max_steps=20, save_steps=4, per_device_train_batch_size=8, learning_rate=0.05,
                             logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, seed=3)
    trainer = Trainer(Line(), args, train_dataset=data, callbacks=[HoldfastCallback(keep=3), Leave()])
    resumed = last_checkpoint(output)
    trainer.train(resume_from_checkpoint=resumed)
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    weights = [float(w) for w in trainer.model.layer.weight.flatten()]
    print(json.dumps({"resumed": resumed, "losses": losses, "step": trainer.state.global_step, "weights": weights}))
"""


def test_hugging_face_trainer_goes_on_from_the_newest_whole_folder(tmp_path: Path) -> None:
    needs("torch", "transformers", "accelerate")
    whole = run(TRAINER, tmp_path / "whole", -1)
    assert whole["step"] == 20
    run(TRAINER, tmp_path / "broken", 13)
    folders = sorted(tmp_path.glob("broken/checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert [path.name for path in folders][-2:] == ["checkpoint-12", "checkpoint-13"]
    flip(next(folders[-1].glob("*.safetensors")))
    (tmp_path / "broken" / "checkpoint-14").mkdir()  # one that was begun and never finished
    again = run(TRAINER, tmp_path / "broken", -1)
    assert again["resumed"] == str(tmp_path / "broken" / "checkpoint-12")
    assert again["losses"] == whole["losses"]
    assert again["weights"] == whole["weights"]
    assert len(list(tmp_path.glob("broken/checkpoint-*/trainer_state.json"))) == 3


def test_hugging_face_trainer_saves_at_a_notice(tmp_path: Path) -> None:
    needs("torch", "transformers", "accelerate")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notice.json").write_text("{}")
    told = run(TRAINER, tmp_path / "out", -1, HOLDFAST_RUN_DIR=str(tmp_path / "run"))
    assert told["step"] == 1
    again = run(TRAINER, tmp_path / "out", -1)
    assert (again["resumed"], again["step"]) == (str(tmp_path / "out" / "checkpoint-1"), 20)


LIGHTNING = """
    import json, sys, torch, warnings, logging
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from holdfast.checkpoint.adapters.lightning import HoldfastCheckpointIO, SaveAtNotice, last_checkpoint
    root, epochs = sys.argv[1], int(sys.argv[2])
    pl.seed_everything(0, verbose=False)
    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            (x,) = batch
            return torch.nn.functional.mse_loss(self.layer(x).squeeze(-1), x.sum(1))
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)
    points = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=8)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[HoldfastCheckpointIO()],
        callbacks=[ModelCheckpoint(root, save_top_k=-1, every_n_epochs=1), SaveAtNotice(root)])
    resumed = last_checkpoint(root)
    model = Line()
    trainer.fit(model, loader, ckpt_path=resumed)
    weights = [float(w) for w in model.layer.weight.flatten()]
    print(json.dumps({"resumed": resumed, "step": trainer.global_step, "w": weights}))
"""


def test_lightning_goes_on_from_the_newest_whole_file(tmp_path: Path) -> None:
    needs("torch", "lightning")
    whole = run(LIGHTNING, tmp_path / "whole", 5)
    run(LIGHTNING, tmp_path / "broken", 3)
    assert last(tmp_path / "broken") == "epoch=2-step=12.ckpt"
    flip(tmp_path / "broken" / "epoch=2-step=12.ckpt")
    again = run(LIGHTNING, tmp_path / "broken", 5)
    assert again["resumed"].endswith("epoch=1-step=8.ckpt")
    assert again["w"] == whole["w"]


def last(directory: Path) -> str:
    return max((path.name for path in directory.glob("*.ckpt")), key=lambda name: int(name.split("step=")[1][:-5]))


DCP = """
    import json, os, sys, torch
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor, Shard
    from torch.distributed.device_mesh import init_device_mesh
    from holdfast.checkpoint.adapters.dcp import DcpCheckpoints
    root, what = sys.argv[1], sys.argv[2]
    dist.init_process_group("gloo", init_method="file://" + sys.argv[3])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    def state(fill):
        return {"w": distribute_tensor(torch.full((24, 8), fill) + torch.arange(24.0)[:, None], mesh, [Shard(0)])}
    checkpoints = DcpCheckpoints(root, keep=3)
    if what == "save":
        for step in (1, 2):
            checkpoints.save(step, state(float(step)))
        print(json.dumps({}))
    else:
        found = state(0.0)
        step = checkpoints.load(found)
        whole = found["w"].full_tensor()
        print(json.dumps({"step": step, "first": float(whole[0, 0]), "last": float(whole[23, 7]),
                          "skipped": [s for s, _ in checkpoints.last_result.skipped]}))
    dist.destroy_process_group()
"""


def distributed(world: int, *arguments: object, meeting: Path) -> list[Any]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(DCP), *map(str, arguments), str(meeting)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-4000:]
        said.append(json.loads(out.splitlines()[-1]))
    return said


def test_dcp_loads_on_another_number_of_processes_and_past_a_broken_one(tmp_path: Path) -> None:
    needs("torch")
    distributed(2, tmp_path / "c", "save", meeting=tmp_path / "m1")
    expected = {"step": 2, "first": 2.0, "last": 25.0, "skipped": []}
    assert distributed(3, tmp_path / "c", "load", meeting=tmp_path / "m2") == [expected] * 3
    flip(next(path for path in (tmp_path / "c" / "dcp-2").glob("__1_*.distcp")))
    expected = {"step": 1, "first": 1.0, "last": 24.0, "skipped": [2]}
    assert distributed(1, tmp_path / "c", "load", meeting=tmp_path / "m3") == [expected]


def test_orbax_and_safetensors_folders(tmp_path: Path) -> None:
    needs("jax", "orbax", "safetensors")
    program = """
        import json, os, sys
        import jax.numpy as jnp, numpy as np
        import orbax.checkpoint as ocp
        from safetensors.numpy import load_file, save_file
        from holdfast.checkpoint.folders import Folders
        folders = Folders(sys.argv[1])
        for step in (1, 2):
            with folders.saving(step) as path:
                saver = ocp.StandardCheckpointer()
                saver.save(os.path.join(path, "orbax"), {"w": jnp.arange(1000.0) * step})
                saver.wait_until_finished()
                save_file({"w": np.arange(10.0) * step}, os.path.join(path, "w.safetensors"))
        def load():
            newest = folders.newest()
            tree = ocp.StandardCheckpointer().restore(os.path.join(newest.path, "orbax"))
            arrays = load_file(os.path.join(newest.path, "w.safetensors"))
            return [newest.step, float(tree["w"][999]), float(arrays["w"][9])]
        whole = load()
        name, size = max(((os.path.join(d, f), os.path.getsize(os.path.join(d, f)))
                          for d, _, fs in os.walk(folders.path_of(2)) for f in fs), key=lambda one: one[1])
        content = bytearray(open(name, "rb").read())
        content[size // 2] ^= 8
        open(name, "wb").write(content)
        print(json.dumps([whole, load()]))
    """
    assert run(program, tmp_path, JAX_PLATFORMS="cpu") == [[2, 1998.0, 18.0], [1, 999.0, 9.0]]
