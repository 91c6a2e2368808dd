"""Writes tasks as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes text with several lines as a block, as people do."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump_task(config: Mapping[str, Any]) -> str:
    """The YAML of a task, for people to read and to change."""
    return yaml.dump(dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
