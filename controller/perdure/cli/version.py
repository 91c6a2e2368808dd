"""Which version this is, and whether the controller is another."""

from __future__ import annotations


def own_version() -> str:
    """The installed distribution's version."""
    from importlib.metadata import version

    return version("perdure")


def mismatch(controller_version: str) -> str | None:
    """A sentence about a controller of another version; None if it is ours."""
    own = own_version()
    if controller_version == own:
        return None
    return (
        f"the controller is version {controller_version}, this command is {own}; "
        "once they are the same again (perdure controller stop, then start), this goes away"
    )
