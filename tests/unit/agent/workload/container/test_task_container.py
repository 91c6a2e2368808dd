"""What a container shares with its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.agent.workload.container.task_container import _propagation, outermost

MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /ckpt rw,nosuid shared:9 - fuse.rclone bucket rw
31 22 0:26 / /data rw,nosuid - fuse.rclone bucket rw
32 22 0:27 / /with\\040space rw master:3 - tmpfs none rw
33 31 0:28 / /data/deeper rw shared:4 - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/root/sky_workdir", ":rslave"),
        ("/ckpt", ":rslave"),
        ("/ckpt/below", ":rslave"),
        ("/data", ""),
        ("/data/below", ""),
        ("/data/deeper", ":rslave"),
        ("/database", ":rslave"),
        ("/with space/x", ":rslave"),
    ],
)
def test_propagation__is_asked_for_where_the_mount_has_it(tmp_path: Path, path: str, expected: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert _propagation(path, str(table)) == expected


def test_outermost__leaves_out_what_another_path_contains() -> None:
    assert outermost(["/a/b", "/a/", "/ab", "/c/d", "/a"]) == ["/a", "/ab", "/c/d"]
