"""Ray Data on every node: batches are mapped where there is room."""

import os

import ray

ray.init(address="auto")
rows = ray.data.range(1000, override_num_blocks=20)


def square(batch):
    return {"square": batch["id"] ** 2, "node": [os.uname().nodename] * len(batch["id"])}


taken = rows.map_batches(square, batch_size=50).take_all()
print("sum", sum(row["square"] for row in taken), "alive", sum(node["Alive"] for node in ray.nodes()))
ray.shutdown()
