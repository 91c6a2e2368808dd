"""The command that installs Perdure with an extra, for the texts of errors."""

from __future__ import annotations

# Whether `perdure` is on the package index. Until the first release, pip installs from a checkout; the documentation
# and deploy/ say the same (docs/contributing/release.md).
IS_PUBLISHED = False
_NAME = "perdure"


def install_command(extra: str) -> str:
    """How to install `extra` beside what is installed, as the part of a sentence."""
    if IS_PUBLISHED:
        return f"pip install '{_NAME}[{extra}]'"
    return f"pip install '.[{extra}]' in your checkout of Perdure"
