"""Ray Train on every node: each worker counts down, and reports where it ran."""

import argparse
import os

import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train_on_one_worker(config):
    loss = 1.0
    for _ in range(config["epochs"]):
        loss /= 2
        ray.train.report({"loss": loss, "rank": ray.train.get_context().get_world_rank()})
    print("worker", ray.train.get_context().get_world_rank(), "on", os.uname().nodename)


parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, required=True)
given = parser.parse_args()
trainer = DataParallelTrainer(
    train_on_one_worker,
    train_loop_config={"epochs": 3},
    scaling_config=ScalingConfig(
        num_workers=given.num_workers, placement_strategy="STRICT_SPREAD", resources_per_worker={"CPU": 1}
    ),
)
trainer.fit()
print("trained on", sum(node["Alive"] for node in ray.nodes()), "nodes")
