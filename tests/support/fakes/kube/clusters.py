"""Several fake clusters as the contexts of one kubeconfig."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from support.fakes.kube.cluster import FakeKube


def join_kubeconfigs(path: Path, clusters: Iterable[FakeKube]) -> None:
    """Write a kubeconfig with the context of every cluster; the first is the current one."""
    joined: dict[str, Any] = {}
    for kube in clusters:
        for name, value in kube.kubeconfig_data().items():
            joined[name] = (
                joined[name] + value if isinstance(value, list) and name in joined else joined.get(name, value)
            )
    path.write_text(yaml.safe_dump(joined))
