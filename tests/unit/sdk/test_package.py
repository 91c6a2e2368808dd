"""The names of `perdure.sdk`, and what importing it loads."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

from perdure import sdk


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


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        (sdk, "cost_report", "use sdk.jobs.queue, whose records have `cost_usd`"),
        (sdk, "AWS", "name the cloud as text: Resources(infra='aws/us-east-1')"),
        (sdk, "RequestId", "calls return their results at once, so leave it out"),
        (sdk, "StatusRefreshMode", "statuses are always up to date, so leave `refresh` out"),
        (sdk.jobs, "queue_v2", "use queue, or iter_all for all jobs"),
    ],
)
def test_names_of_skypilot__say_what_to_use(module: ModuleType, name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value) == f"module {module.__name__!r} has no attribute {name!r}: {hint}"


def test_names_of_skypilot__are_no_names_of_ours() -> None:
    assert not sdk._ELSEWHERE.keys() & set(sdk.__all__)
    assert not [name for name in sdk.jobs._ELSEWHERE if name in vars(sdk.jobs)]
    for text in sdk._ELSEWHERE.values():
        for name in re.findall(r"sdk\.jobs\.(\w+)", text):
            assert name in vars(sdk.jobs), text


def test_version__is_that_of_the_distribution() -> None:
    assert sdk.__version__ == version("perdure")


def test_unknown_name__has_no_hint() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'lunch'$"):
        getattr(sdk, "lunch")  # noqa: B009 - mypy knows that it does not exist


def test_import__is_quiet() -> None:
    modules = "perdure.sdk, perdure.sdk.jobs, perdure.sdk.dag, perdure.sdk.files.uploads, perdure.cli.main"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {modules}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
