"""What libraries would load along with them, and a daemon never uses."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without(module: str) -> Iterator[None]:
    """Within it, `module` seems not to be installed to whoever imports it; does nothing where it is loaded already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the import system's own sign for it
    try:
        yield
    finally:
        del sys.modules[module]


def load_structlog() -> None:
    """structlog takes rich, where there is one, for consoles: 5 MiB with what rich loads. A daemon writes JSON."""
    with without("rich"):
        import structlog  # noqa: F401
