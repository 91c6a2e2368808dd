"""States of JAX's libraries and of PyTorch's trees, and the processes of a process group."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from integration.frameworks.programs import needs, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OPTAX = """
    import json, sys
    import jax, jax.numpy as jnp, optax
    from perdure.checkpoint import Checkpointer
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 100)))
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros(3, jnp.bfloat16)}
    key = jax.random.key(7)
    def update(params, state, key):
        gradients = jax.tree.map(lambda p: jax.random.normal(key, p.shape, p.dtype), params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state
    state = optimizer.init(params)
    for _ in range(3):
        key, used = jax.random.split(key)
        params, state = update(params, state, used)
    with Checkpointer(sys.argv[1]) as checkpointer:
        checkpointer.save(3, {"params": params, "optimizer": state, "key": key})
        loaded = checkpointer.load()
    def same(one, other):
        equal = jax.tree.map(lambda a, b: bool((jax.random.key_data(a) == jax.random.key_data(b)).all())
                             if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else bool((a == b).all()), one, other)
        return jax.tree.structure(one) == jax.tree.structure(other) and all(jax.tree.leaves(equal))
    saved = {"params": params, "optimizer": state, "key": key}
    again = update(loaded["params"], loaded["optimizer"], loaded["key"])
    print(json.dumps([same(loaded, saved), same(again, update(params, state, key))]))
"""

FLAX = """
    import json, sys
    import jax, jax.numpy as jnp, optax
    from flax import nnx
    from flax.core import FrozenDict
    from flax.training.train_state import TrainState
    from perdure.checkpoint import Checkpointer, CheckpointError
    class Model(nnx.Module):
        def __init__(self, seed):
            self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
    def train_state(seed):
        params = FrozenDict({"w": jax.random.normal(jax.random.key(seed), (3, 2))})
        return TrainState.create(apply_fn=lambda p, x: x @ p["w"], params=params, tx=optax.sgd(0.1, momentum=0.9))
    def both(seed):
        return {"nnx": nnx.state(Model(seed)), "linen": train_state(seed)}
    saved = both(1)
    with Checkpointer(sys.argv[1]) as checkpointer:
        checkpointer.save(1, saved)
        restored = checkpointer.load(into=both(2))
        try:
            checkpointer.load()
            problem = ""
        except CheckpointError as error:
            problem = str(error)
    pairs = list(zip(jax.tree.leaves(restored), jax.tree.leaves(saved), strict=True))
    equal = [bool((jnp.asarray(one) == jnp.asarray(other)).all()) for one, other in pairs]
    graph = nnx.graphdef(Model(3))
    x = jnp.ones((1, 3))
    print(json.dumps({
        "equal": all(equal), "leaves": len(equal), "problem": problem,
        "kinds": [type(restored["linen"]).__name__, type(restored["linen"].params).__name__],
        "usable": bool((nnx.merge(graph, restored["nnx"]).layer(x) == nnx.merge(graph, saved["nnx"]).layer(x)).all()),
    }))
"""

TORCH = """
    import json, sys, torch
    from dataclasses import dataclass
    import torch.utils._pytree as pytree
    from perdure.checkpoint import Checkpointer
    @dataclass
    class Moments:
        mean: torch.Tensor
        count: int
        name: str
    pytree.register_pytree_node(
        Moments, lambda one: ([one.mean, one.count], one.name), lambda parts, name: Moments(*parts, name))
    with Checkpointer(sys.argv[1]) as checkpointer:
        checkpointer.save(1, {"m": Moments(torch.arange(3.0), 4, "saved")})
        mine = torch.zeros(3)
        restored = checkpointer.load(into={"m": Moments(mine, 0, "mine")})["m"]
    print(json.dumps([restored.mean.tolist(), restored.count, restored.name, restored.mean is mine]))
"""

GROUPS = """
    import json, os, sys, torch.distributed as dist
    from perdure.checkpoint import Checkpointer
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = rank // 2
    with Checkpointer(f"{sys.argv[1]}-{mine}", sharded=True, process_group=groups[mine]) as checkpointer:
        checkpointer.save(1 + mine, {"rank": rank})
        loaded = checkpointer.load()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps([checkpointer.last_result.step, loaded["rank"]]))
"""


def test_optax__comes_back_with_its_types_and_computes_the_same(tmp_path: Path) -> None:
    needs("jax", "optax")
    assert run(OPTAX, tmp_path) == [True, True]


def test_flax__comes_back_into_a_state_like_it(tmp_path: Path) -> None:
    needs("jax", "flax", "optax")
    output = run(FLAX, tmp_path)
    assert output["equal"]
    assert output["leaves"] == 5
    assert output["kinds"] == ["TrainState", "FrozenDict"]
    assert output["usable"]
    assert "whose content alone does not make one: load with `into`" in output["problem"]


def test_torch__registered_containers_come_back_into_one_like_it(tmp_path: Path) -> None:
    needs("torch")
    assert run(TORCH, tmp_path) == [[0.0, 1.0, 2.0], 4, "mine", True]


def test_process_group__only_its_processes_save_together(tmp_path: Path) -> None:
    needs("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(4) as ranks:
        output = list(ranks.map(lambda rank: run(GROUPS, tmp_path / "c", **world, RANK=str(rank)), range(4)))
    assert output == [[1, 0], [1, 1], [2, 2], [2, 3]]
