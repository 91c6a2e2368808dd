"""SkyPilot's PyTorch quickstart as a Python program: only its import is changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.helpers.clusters import Clusters
from support.helpers.timing import scaled

# As in SkyPilot's documentation (docs/source/getting-started), except that nothing is downloaded.
PROGRAM = """
import perdure.sdk as sky

minGPT_ddp_task = sky.Task(
    name='minGPT-ddp',
    resources=sky.Resources(
        cpus='4+',
        accelerators='V100:4',
    ),
    setup=[
        'mkdir -p examples/mingpt',
        'cd examples',
        'echo requirements > mingpt/requirements.txt',
    ],
    run=[
        'cd examples/mingpt',
        'export LOGLEVEL=INFO',
        'cat requirements.txt',
        'echo nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE visible=$CUDA_VISIBLE_DEVICES',
    ]
)

cluster_name = 'mingpt'
launch_request = sky.launch(task=minGPT_ddp_task, cluster_name=cluster_name)
job_id, _ = sky.stream_and_get(launch_request)
sky.tail_logs(cluster_name, job_id, follow=True)
"""


def test_quickstart__runs_with_only_its_import_changed(sky: Clusters, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={"PATH": "/usr/bin:/bin", "PERDURE_HOME": str(sky.controller.home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(90),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\nrequirements\nnproc_per_node=4 visible=0,1,2,3\n" in done.stdout
    assert sky.job("mingpt", 1)["status"] == "SUCCEEDED"
