"""`python rig.py HOME FOLDER`: the real daemon, whose local machines each have a network of their own.

A name of a machine in HOME/forgotten makes its cloud know nothing of it any more, though it lives on: so does a cloud
that lags behind itself, and so looks a machine that was written off by mistake.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from perdure.controller.clouds.base import Instance
from perdure.controller.clouds.local import cloud, isolation, launcher

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
    launcher.host_python = lambda: [*wrapper, *isolation.host_python()]  # type: ignore[attr-defined]
    cloud.LocalCloud = ForgetfulCloud  # type: ignore[misc]
    sys.exit(main(["serve", "--home", str(HOME)]))
