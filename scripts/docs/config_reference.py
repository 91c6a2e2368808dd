"""The page of every configuration key, from the tables that the readers of `config.yaml` use."""

from __future__ import annotations

from itertools import groupby

from perdure.controller.runtime.config.config_key import ConfigKey
from perdure.controller.runtime.config.reference import config_keys

_INTRO = """# Configuration

`$PERDURE_HOME/config.yaml` configures the controller. Every key is optional. An unknown key is an error that names the
nearest known one. The controller reads the file when it starts.
"""


def page() -> str:
    lines = [_INTRO]
    keys = sorted(config_keys(), key=_section)  # stable: keys keep their order within a section
    for section, rows in groupby(keys, key=_section):
        lines += [f"## `{section}`" if section else "## Top level", "", "| key | type | default | unit | meaning |"]
        lines += ["|---|---|---|---|---|"]
        for one in rows:
            cells = (f"`{one.path}`", one.type, _default(one), one.unit, one.meaning)
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _section(key: ConfigKey) -> str:
    return key.path.partition(".")[0] if "." in key.path else ""


def _default(key: ConfigKey) -> str:
    default = str(key.default or "")
    return f"`{default}`" if default and " " not in default else default


def _cell(text: object) -> str:
    return " ".join(str(text or "").split()).replace("|", "\\|")
