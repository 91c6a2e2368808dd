"""The names of `perdure.sdk`, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_sdk_import__loads_no_heavy_module() -> None:
    heavy = "http", "http.client", "socket", "ssl", "yaml", "json", "difflib", "asyncio", "subprocess", "urllib"
    code = f"""
import sys, perdure.sdk
assert not [name for name in sys.modules if name.startswith("perdure.sdk.")]
from perdure.sdk import Dag, Resources, Storage, Task
Task("a", run="x", resources=Resources(accelerators="A100:8"))
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_sdk__rejects_unknown_names() -> None:
    import perdure.sdk

    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        perdure.sdk.nope  # noqa: B018
    assert perdure.sdk.jobs.__name__ == "perdure.sdk.jobs"
