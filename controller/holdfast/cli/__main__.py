"""`python -m holdfast.cli`: the same as `holdfast`."""

from __future__ import annotations

from holdfast.cli.start import main

if __name__ == "__main__":
    main()
