"""The client that commands use to reach the controller, and the comparison of its version with ours."""

from __future__ import annotations

import sys

import click

from perdure.cli.output.progress import spinner
from perdure.cli.output.text import printable
from perdure.sdk.connection import api_types, discovery
from perdure.sdk.connection.client import Client
from perdure.sdk.connection.endpoint import Endpoint


def connect() -> Client:
    """Return a client of the controller; start the embedded one first if none is running. Raises `NoController`."""
    target = discovery.find()
    if target is None:
        if sys.stderr.isatty():
            click.echo("Starting the controller …", err=True)
        with spinner("Starting the controller"):
            target = discovery.ensure()
    return client_of(target)


def client_of(target: Endpoint) -> Client:
    """A client whose responses can be printed: what other users and nodes chose is free of control characters."""
    return Client(target, clean=printable)


def outdated_config(info: api_types.ControllerInfo) -> str | None:
    """A warning about a config.yaml that the controller has not read yet; None if it has."""
    if not info.get("config_changed"):
        return None
    return (
        "config.yaml was changed after the controller started\n"
        "  to apply the change, run: perdure controller stop && perdure controller start"
    )


def version_mismatch(controller_version: str) -> str | None:
    """A warning about a controller of another version; None if it has this command's version."""
    from importlib.metadata import version

    own = version("perdure")
    if controller_version == own:
        return None
    return (
        f"the controller is version {controller_version}, but this command is version {own}\n"
        "  to restart the controller with this version: perdure controller stop && perdure controller start"
    )
