"""The imports of a daemon."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from perdure.controller.runtime.process import quick_imports

IMPORT = """
import sys
from importlib import metadata
from perdure.controller.runtime.process import quick_imports
searched = []
find = metadata.entry_points
metadata.entry_points = lambda **params: searched.append(params) or find(**params)
with quick_imports():
    import perdure.controller.daemon
print("pydantic.v1" in sys.modules, searched)
assert metadata.entry_points.__name__ == "<lambda>"
import pydantic.v1
"""


def test_quick_imports__collect_garbage_again_afterwards() -> None:
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(RuntimeError), quick_imports():
        raise RuntimeError
    assert gc.isenabled()


def test_quick_imports__leave_out_what_no_daemon_needs() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert run.stdout == "False []\n"
