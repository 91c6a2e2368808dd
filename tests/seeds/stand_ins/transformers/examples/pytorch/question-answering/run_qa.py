"""Stands for the fine-tuning of BERT: takes its options, saves and loads checkpoints where and as it does."""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for flag in ("--do_train", "--do_eval"):
    parser.add_argument(flag, action="store_true", required=True)
for option in ("--model_name_or_path", "--dataset_name", "--report_to", "--run_name"):
    parser.add_argument(option, required=True)
for number in ("--per_device_train_batch_size", "--max_seq_length", "--doc_stride", "--save_total_limit"):
    parser.add_argument(number, type=int, required=True)
parser.add_argument("--num_train_epochs", type=int, required=True)
parser.add_argument("--save_steps", type=int, required=True)
parser.add_argument("--learning_rate", type=float, required=True)
parser.add_argument("--output_dir", type=Path, required=True)
given = parser.parse_args()

assert os.environ["WANDB_API_KEY"], "wandb asks for a key"
given.output_dir.mkdir(parents=True, exist_ok=True)
saved = sorted(given.output_dir.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name[11:]))
step = json.loads(saved[-1].read_text())["global_step"] if saved else 0
print(f"wandb: run {given.run_name} continues after step {step}")
while step < given.num_train_epochs * 100:
    step += 100
    time.sleep(0.05)
    if step % given.save_steps:
        continue
    folder = given.output_dir / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    kept = sorted(given.output_dir.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    for old in kept[: -given.save_total_limit]:
        shutil.rmtree(old)
    print(f"saved checkpoint-{step}")
print(f"trained {given.model_name_or_path} on {given.dataset_name} to step {step}")
