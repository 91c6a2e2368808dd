"""Coverage-guided fuzzing of the YAML reader (`make fuzz`): any bytes yield tasks that survive a round trip, or a
`TaskError` that can be printed. Anything else is a crash, which libFuzzer writes to a file: put that into `corpus`.

    python tests/fuzz/yaml_reader.py [libFuzzer's options] CORPUS_FOLDER...
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["perdure.sdk"]):
    from perdure.sdk import Dag
    from perdure.sdk.spec.problems import TaskError
    from perdure.sdk.task import Task

_FILE = os.path.join(tempfile.mkdtemp(prefix="perdure-fuzz-"), "task.yaml")


def one_input(data: bytes) -> None:
    with open(_FILE, "wb") as file:
        file.write(data)
    try:
        tasks = Dag.from_yaml(_FILE).tasks
    except TaskError as refused:
        if not str(refused).encode() or any(problem.file != _FILE for problem in refused.problems):
            raise AssertionError(f"not said as it should be: {refused!r}") from refused
        return
    for task in tasks:
        config = json.loads(json.dumps(task.to_yaml_config(), allow_nan=False))
        if Task.from_yaml_config(config) != task:
            raise AssertionError(f"not the same again: {config!r}")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
