"""The entry point of the `perdure` script: Ctrl-C works before anything else is imported."""

from __future__ import annotations

from perdure.cli.output import interrupt


def main() -> None:
    """Run the command line of this process."""
    interrupt.exit_on_interrupt()
    from perdure.cli.main import main

    main()
