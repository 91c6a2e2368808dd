"""`python rig.py HOME FOLDER`: the real daemon, whose local machines have a network namespace each.

A machine's name in HOME/forgotten makes its cloud forget it while it continues to run, as a cloud with delayed lists
does, and as a machine looks that was written off by mistake.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from perdure.controller.clouds.base.protocol import Instance
from perdure.controller.clouds.local import cloud
from perdure.controller.clouds.local.host import host_process
from perdure.controller.clouds.local.machine import isolation

HOME, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])


class ForgetfulCloud(cloud.LocalCloud):
    def _is_known(self, instance: str) -> bool:
        return not (HOME / "forgotten" / instance).exists()

    def describe(self, region: str, ids: Sequence[str]) -> Sequence[Instance]:
        return super().describe(region, [id for id in ids if self._is_known(id)])

    def list_owned(self, controller: str) -> Sequence[Instance]:
        return [i for i in super().list_owned(controller) if self._is_known(i.id)]

    def terminate(self, region: str, ids: Sequence[str]) -> None:
        super().terminate(region, [id for id in ids if self._is_known(id)])


if __name__ == "__main__":
    from perdure.controller.__main__ import main

    wrapper = ["sh", str(Path(__file__).with_name("node.sh")), str(os.getpid()), str(FOLDER)]
    host_process.host_python = lambda: [*wrapper, *isolation.host_python()]  # type: ignore[attr-defined]
    cloud.LocalCloud = ForgetfulCloud  # type: ignore[misc]
    sys.exit(main(["serve", "--home", str(HOME)]))
