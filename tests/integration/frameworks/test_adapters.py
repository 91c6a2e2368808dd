"""The adapters with the real frameworks, each in a separate process; skipped if a framework is not installed."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from integration.frameworks.programs import needs, run
from perdure.checkpoint.folders import Folders

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


Runs = dict[str, dict[str, Any]]  # what each run of the Trainer printed, by its name


TRAINER = """
    import json, os, pathlib, sys, torch
    from transformers import Trainer, TrainingArguments, TrainerCallback
    from perdure.checkpoint.adapters.huggingface import PerdureCallback, last_checkpoint
    root = pathlib.Path(sys.argv[1])
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
        def __init__(self, at):
            self.at = at
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == self.at:
                control.should_save = control.should_training_stop = True
    def train(name, stop_at=-1):
        torch.manual_seed(0)
        args = TrainingArguments(str(root / name), max_steps=20, save_steps=4, per_device_train_batch_size=8,
                                 learning_rate=0.05, logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True,
                                 seed=3)
        trainer = Trainer(Line(), args, train_dataset=data, callbacks=[PerdureCallback(keep=3), Leave(stop_at)])
        resumed = last_checkpoint(root / name)
        trainer.train(resume_from_checkpoint=resumed)
        return {"resumed": resumed and os.path.basename(resumed), "step": trainer.state.global_step,
                "losses": [one["loss"] for one in trainer.state.log_history if "loss" in one],
                "weights": trainer.model.layer.weight.flatten().tolist(),
                "folders": sorted((p.name for p in (root / name).iterdir() if p.name.startswith("checkpoint-")),
                                  key=lambda name: int(name.split("-")[1]))}
    output = {"whole": train("whole"), "cut": train("broken", stop_at=13)}
    weights = root / "broken" / "checkpoint-13" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (root / "broken" / "checkpoint-14").mkdir()  # an unfinished one
    output["again"] = train("broken")
    os.environ["PERDURE_RUN_DIR"] = str(root)
    (root / "notice.json").write_text("{}")
    output["reported"] = train("noticed")
    (root / "notice.json").unlink()
    del os.environ["PERDURE_RUN_DIR"]
    output["after"] = train("noticed")
    print(json.dumps(output))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One process for all runs of the Trainer: importing it takes longer than the rest."""
    needs("torch", "transformers", "accelerate")
    runs: Runs = run(TRAINER, tmp_path_factory.mktemp("trainer"))
    return runs


def test_hugging_face__resumes_from_the_newest_whole_folder(trained: Runs) -> None:
    whole, cut, again = trained["whole"], trained["cut"], trained["again"]
    assert (whole["step"], cut["step"]) == (20, 13)
    assert cut["folders"] == ["checkpoint-8", "checkpoint-12", "checkpoint-13"]
    assert again["resumed"] == "checkpoint-12"
    assert again["losses"] == whole["losses"]
    assert again["weights"] == whole["weights"]
    # Three whole ones are kept. The damaged one and the unfinished one neither count nor are removed.
    assert again["folders"] == [f"checkpoint-{step}" for step in (12, 13, 14, 16, 20)]


def test_hugging_face__saves_at_a_notice(trained: Runs) -> None:
    assert (trained["reported"]["step"], trained["reported"]["folders"]) == (1, ["checkpoint-1"])
    assert (trained["after"]["resumed"], trained["after"]["step"]) == ("checkpoint-1", 20)
    assert trained["after"]["losses"] == trained["whole"]["losses"]


RANK_OF_A_TRAINER = """
    import json, os, pathlib, sys, torch
    from transformers import Trainer, TrainingArguments
    from perdure.checkpoint.adapters.huggingface import PerdureCallback
    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels):
            out = self.layer(x).squeeze(-1)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}
    data = [{"x": p, "labels": p.sum()} for p in torch.randn(640, 4, generator=torch.Generator().manual_seed(1))]
    args = TrainingArguments(sys.argv[1], max_steps=30, save_strategy="no", per_device_train_batch_size=8,
                             report_to=[], disable_tqdm=True, use_cpu=True, ddp_backend="gloo")
    trainer = Trainer(Line(), args, train_dataset=data, callbacks=[PerdureCallback()])
    trainer.train()
    print(json.dumps(trainer.state.global_step))
"""


def test_hugging_face__all_ranks_stop_at_a_notice_to_one(tmp_path: Path) -> None:
    needs("torch", "transformers", "accelerate")
    (tmp_path / "notice.json").write_text("{}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    notice = {"PERDURE_RUN_DIR": str(tmp_path)}  # for rank 1 only
    ranks = [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1", **notice}]
    with ThreadPoolExecutor(2) as both:
        output = both.map(lambda env: run(RANK_OF_A_TRAINER, tmp_path / "c", **world, **env), ranks)
        assert list(output) == [1, 1]
    newest = Folders(tmp_path / "c").newest()
    assert newest is not None
    assert newest.step == 1


LIGHTNING = """
    import json, os, pathlib, sys, torch
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from perdure.checkpoint import Resumable
    from perdure.checkpoint.adapters.lightning import PerdureCheckpointIO, SaveAtNotice, last_checkpoint
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
    def train(root, epochs):
        pl.seed_everything(0, verbose=False)
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            plugins=[PerdureCheckpointIO()],
            callbacks=[ModelCheckpoint(root, save_top_k=-1, every_n_epochs=1), SaveAtNotice(root)])
        resumed = last_checkpoint(root)
        model = Line()
        trainer.fit(model, Resumable(loader), ckpt_path=resumed)
        return {"resumed": resumed and os.path.basename(resumed), "step": trainer.global_step,
                "weights": model.layer.weight.flatten().tolist(), "files": sorted(p.name for p in root.glob("*.ckpt"))}
    root = pathlib.Path(sys.argv[1])
    output = {"whole": train(root / "whole", 5), "cut": train(root / "broken", 3)}
    newest = root / "broken" / "epoch=2-step=12.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    output["again"] = train(root / "broken", 5)
    os.environ["PERDURE_RUN_DIR"] = str(root)
    (root / "notice.json").write_text("{}")
    output["reported"] = train(root / "noticed", 5)
    (root / "notice.json").unlink()
    output["after"] = train(root / "noticed", 5)
    print(json.dumps(output))
"""


def test_lightning__resumes_from_the_newest_whole_file_and_saves_at_a_notice(tmp_path: Path) -> None:
    needs("torch", "lightning")
    output = run(LIGHTNING, tmp_path)
    assert output["cut"]["files"][-1] == "epoch=2-step=12.ckpt"
    assert output["again"]["resumed"] == "epoch=1-step=8.ckpt"
    assert output["again"]["weights"] == output["whole"]["weights"]
    # ModelCheckpoint also saves at the stop, as if the epoch had been completed; that one would skip the rest of it.
    assert (output["reported"]["step"], output["reported"]["files"]) == (
        1,
        ["epoch=0-step=1.ckpt", "notice-step=1.ckpt"],
    )
    assert (output["after"]["resumed"], output["after"]["step"]) == ("notice-step=1.ckpt", 20)
    assert output["after"]["weights"] == output["whole"]["weights"]


DCP = """
    import json, multiprocessing, pathlib, sys, torch
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor, Shard
    from torch.distributed.device_mesh import init_device_mesh
    from perdure.checkpoint.adapters.dcp import DcpCheckpoints
    root = pathlib.Path(sys.argv[1])
    def state(fill):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return {"w": distribute_tensor(torch.full((24, 8), fill) + torch.arange(24.0)[:, None], mesh, [Shard(0)])}
    def save():
        checkpoints = DcpCheckpoints(root / "c", keep=3)
        for step in (1, 2):
            checkpoints.save(step, state(float(step)))
    def load():
        checkpoints, restored = DcpCheckpoints(root / "c", keep=3), state(0.0)
        step = checkpoints.load(restored)
        whole = restored["w"].full_tensor()
        return [step, float(whole[0, 0]), float(whole[23, 7]), [s for s, _ in checkpoints.last_result.skipped]]
    def member(rank, world, meeting, work, output):
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        output.put(work())
        dist.destroy_process_group()
    def together(world, work):
        fork = multiprocessing.get_context("fork")  # torch is imported once
        output, meeting = fork.Queue(), root / f"meeting-{world}-{work.__name__}"
        members = [fork.Process(target=member, args=(rank, world, meeting, work, output)) for rank in range(world)]
        for one in members:
            one.start()
        answers = [output.get(timeout=200) for _ in members]
        for one in members:
            one.join()
            assert one.exitcode == 0
        return answers
    together(2, save)
    whole = together(3, load)
    (part,) = (root / "c" / "dcp-2").glob("__1_*.distcp")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    print(json.dumps([whole, together(1, load)]))
"""


def test_dcp__loads_on_another_number_of_processes_and_past_damage(tmp_path: Path) -> None:
    needs("torch")
    whole, broken = run(DCP, tmp_path)
    assert whole == [[2, 2.0, 25.0, []]] * 3
    assert broken == [[1, 1.0, 24.0, [2]]]


def test_folders__with_orbax_and_safetensors(tmp_path: Path) -> None:
    needs("jax", "orbax", "safetensors")
    program = """
        import json, os, sys
        import jax.numpy as jnp, numpy as np
        import orbax.checkpoint as ocp
        from safetensors.numpy import load_file, save_file
        from perdure.checkpoint.folders import Folders
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


WRAPPERS = """
    import json, os, sys, torch
    from perdure.checkpoint import Checkpointer
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    wraps = {
        "plain": lambda model: model,
        "ddp": torch.nn.parallel.DistributedDataParallel,
        "compiled": torch.compile,
        "both": lambda model: torch.compile(torch.nn.parallel.DistributedDataParallel(model)),
        "data parallel": torch.nn.DataParallel,
    }
    def same(one, other):
        return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    right = []
    for saved_as, save_wrap in wraps.items():
        first = torch.nn.Linear(3, 2)
        checkpointer = Checkpointer(os.path.join(sys.argv[1], saved_as))
        checkpointer.save(1, {"model": save_wrap(first)})
        for loaded_as, load_wrap in wraps.items():
            second = torch.nn.Linear(3, 2)
            assert not same(first, second)
            wrapped = load_wrap(second)
            assert checkpointer.load(into={"model": wrapped})["model"] is wrapped
            right.append(same(first, second))
    print(json.dumps(right))
"""


def test_checkpointer__loads_into_another_wrapper(tmp_path: Path) -> None:
    needs("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert run(WRAPPERS, tmp_path, port) == [True] * 25
