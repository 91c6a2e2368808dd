"""Runs in a Python with SkyPilot: reads task YAMLs as JSON from stdin, and prints what its parser says about each.

`{name: text}` → `{"verdicts": {name: the error, or ""}, "fields": {mapping: its fields}}`. SkyPilot downloads its
catalog of GPUs, so a small one with `GPUS` takes its place.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

GPUS = {"A100": 40, "A100-80GB": 80, "H100": 80, "H200": 141, "T4": 16, "V100": 16}  # GB of memory


def write_catalog(home: Path) -> None:
    """Write the catalog where SkyPilot looks for it."""
    folder = home / ".sky/catalogs/v8/common"
    folder.mkdir(parents=True)
    memory = [f"{name},{size},NVIDIA" for name, size in GPUS.items()]
    (folder / "metadata.csv").write_text("\n".join(["GPU,MemoryGB,Manufacturer", *memory, ""]))
    clouds = [f"{name},\"['AWS', 'GCP']\"" for name in (*GPUS, "Trainium")]
    (folder / "accelerators.csv").write_text("\n".join(["AcceleratorName,Clouds", *clouds, ""]))


def judge(text: str) -> str:
    """What SkyPilot says about a task YAML; empty if it accepts it."""
    from sky.utils import dag_utils

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        try:
            dag_utils.load_dag_from_yaml(file.name)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def fields() -> dict[str, list[str]]:
    """The fields of the task YAML in SkyPilot's own schema."""
    from sky.utils import schemas

    storage = schemas.get_storage_schema()["properties"]
    config = storage["config"]["properties"]
    mappings = {
        "task": schemas.get_task_schema()["properties"],
        "resources": schemas.get_resources_schema()["properties"],
        "storage": storage,
        "storage.config": config,
        "storage.config.mount": config["mount"]["properties"],
        "storage.config.mount_cached": config["mount_cached"]["properties"],
    }
    return {name: sorted(properties) for name, properties in mappings.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        write_catalog(Path(home))
        verdicts = {name: judge(text) for name, text in json.load(sys.stdin).items()}
        answer = {"verdicts": verdicts, "fields": fields()}
    print("\n" + json.dumps(answer))
