"""A wall clock that a test may set while a Python process runs: `sitecustomize` puts it there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CODE = Path(__file__).parent


@dataclass(frozen=True)
class SettableWallClock:
    """`environ`: the variables of a process that sees this clock. `file`: outlives it."""

    file: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": str(CODE), "TEST_WALL_CLOCK": str(self.file)}

    def set_ahead(self, seconds: float) -> None:
        """Set it to the computer's clock plus `seconds`, which may be negative. To be called once before the start."""
        temporary = self.file.with_suffix(".new")
        temporary.write_text(str(seconds))
        os.replace(temporary, self.file)
