"""Accelerate, DeepSpeed and Keras: an interrupted run goes on from the newest whole checkpoint, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.frameworks.programs import needs, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FLIP = """
    def flip_a_bit(folder):
        victim = max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
"""

ACCELERATE = """
    import json, pathlib, sys, torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from perdure.checkpoint import Resumable
    from perdure.checkpoint.adapters.accelerate import AccelerateCheckpoints
    points = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    def train(root, steps):
        set_seed(0)
        accelerator = Accelerator(cpu=True)
        layer = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        loader = torch.utils.data.DataLoader(points, batch_size=8, shuffle=True)
        layer, optimizer, scheduler, loader = accelerator.prepare(layer, optimizer, scheduler, loader)
        batches = Resumable(loader)
        accelerator.register_for_checkpointing(batches)
        checkpoints, losses = AccelerateCheckpoints(accelerator, root, keep=3), []
        step = first = checkpoints.load() or 0
        for x in batches:
            x = torch.nn.functional.dropout(x)
            loss = torch.nn.functional.mse_loss(layer(x).squeeze(-1), x.sum(1))
            optimizer.zero_grad(); accelerator.backward(loss); optimizer.step(); scheduler.step()
            losses.append(float(loss.detach()))
            step += 1
            checkpoints.save(step, metrics={"loss": losses[-1]})
            if step == steps:
                break
        skipped = [step for step, _ in checkpoints.last_result.skipped] if checkpoints.last_result else []
        return {"first": first, "skipped": skipped, "losses": losses,
                "folders": sorted(path.name for path in root.glob("accelerate-*"))}
    root = pathlib.Path(sys.argv[1])
    output = {"whole": train(root / "whole", 8), "cut": train(root / "cut", 5)}
    flip_a_bit(root / "cut" / "accelerate-5")
    output["again"] = train(root / "cut", 8)
    print(json.dumps(output))
"""

DEEPSPEED = """
    import json, os, pathlib, sys, torch
    import deepspeed
    from perdure.checkpoint.adapters.deepspeed import DeepSpeedCheckpoints
    points = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    def train(root, steps):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)
        engine, *_ = deepspeed.initialize(
            model=layer, optimizer=torch.optim.Adam(layer.parameters(), lr=0.05),
            config={"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 0}}, dist_init_required=False)
        checkpoints, losses = DeepSpeedCheckpoints(engine, root, keep=3), []
        state = checkpoints.load() or {"step": 0}
        step = first = state["step"]
        while step < steps:
            x = points[step * 8:step * 8 + 8]
            loss = torch.nn.functional.mse_loss(engine(x).squeeze(-1), x.sum(1))
            engine.backward(loss); engine.step()
            losses.append(float(loss.detach()))
            step += 1
            checkpoints.save(step, {"step": step})
        skipped = [step for step, _ in checkpoints.last_result.skipped] if checkpoints.last_result else []
        return {"first": first, "skipped": skipped, "losses": losses, "steps": engine.global_steps,
                "folders": sorted(path.name for path in root.glob("deepspeed-*")),
                "latest": (root / "latest").exists()}
    root = pathlib.Path(sys.argv[1])
    torch.distributed.init_process_group("gloo", init_method=f"file://{root}/meeting", rank=0, world_size=1)
    deepspeed.init_distributed("gloo", dist_init_required=False)
    output = {"whole": train(root / "whole", 8), "cut": train(root / "cut", 5)}
    flip_a_bit(root / "cut" / "deepspeed-5")
    output["again"] = train(root / "cut", 8)
    torch.distributed.destroy_process_group()
    print(json.dumps(output))
"""

KERAS = """
    import json, os, pathlib, sys
    import numpy as np, keras
    from perdure.checkpoint import preemption
    from perdure.checkpoint.adapters.keras import PerdureCheckpoint
    x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
    def train(root, epochs, notice_at=None):
        keras.utils.set_random_seed(0)
        preemption._cache = preemption._NoticeCache()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
        callback = PerdureCheckpoint(root, keep=3)
        class Notice(keras.callbacks.Callback):
            seen = 0
            def on_train_batch_begin(self, batch, logs=None):
                self.seen += 1
                if self.seen == notice_at:
                    (root / "run").mkdir()
                    (root / "run" / "notice.json").write_text("{}")
                    os.environ["PERDURE_RUN_DIR"] = str(root / "run")
        first = callback.load(model)
        history = model.fit(x, x.sum(1), batch_size=8, epochs=epochs, initial_epoch=first, verbose=0,
                            callbacks=[Notice(), callback])
        os.environ.pop("PERDURE_RUN_DIR", None)
        skipped = [step for step, _ in callback.last_result.skipped] if callback.last_result else []
        return {"first": first, "skipped": skipped, "losses": history.history["loss"],
                "folders": sorted(path.name for path in root.glob("keras-*"))}
    root = pathlib.Path(sys.argv[1])
    for name in ("whole", "cut", "noticed"):
        (root / name).mkdir()
    output = {"whole": train(root / "whole", 8), "cut": train(root / "cut", 5)}
    flip_a_bit(root / "cut" / "keras-5")
    output["again"] = train(root / "cut", 8)
    output["noticed"] = train(root / "noticed", 8, notice_at=20)
    output["after"] = train(root / "noticed", 8)
    print(json.dumps(output))
"""


def test_accelerate__resumes_past_damage(tmp_path: Path) -> None:
    needs("torch", "accelerate")
    output = run(FLIP + ACCELERATE, tmp_path)
    assert output["cut"]["folders"] == ["accelerate-3", "accelerate-4", "accelerate-5"]
    assert (output["again"]["first"], output["again"]["skipped"]) == (4, [5])
    assert output["again"]["losses"] == output["whole"]["losses"][4:]


def test_deepspeed__resumes_past_damage(tmp_path: Path) -> None:
    needs("torch", "deepspeed")
    output = run(FLIP + DEEPSPEED, tmp_path, DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    assert output["cut"]["folders"] == ["deepspeed-3", "deepspeed-4", "deepspeed-5"]
    assert (output["again"]["first"], output["again"]["skipped"]) == (4, [5])
    assert output["again"]["losses"] == output["whole"]["losses"][4:]
    assert output["again"]["steps"] == 8
    assert not output["again"]["latest"]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras__resumes_past_damage_and_after_a_notice(tmp_path: Path, backend: str) -> None:
    needs("keras", backend)
    output = run(FLIP + KERAS, tmp_path, KERAS_BACKEND=backend)
    assert output["cut"]["folders"] == ["keras-3", "keras-4", "keras-5"]
    assert (output["again"]["first"], output["again"]["skipped"]) == (4, [5])
    assert output["again"]["losses"] == output["whole"]["losses"][4:]
    # The notice came in the third epoch, which is repeated.
    assert output["noticed"]["folders"] == ["keras-1", "keras-2"]
    assert output["after"]["first"] == 2
    assert output["after"]["losses"] == output["whole"]["losses"][2:]
