"""A client of the controller for a command: the one that runs, or the embedded one, started now."""

from __future__ import annotations

import sys

import click

from perdure.cli.progress import working
from perdure.sdk import endpoint
from perdure.sdk.client import Client


def to_controller() -> Client:
    """Starts the embedded controller if there is none, and says so. Raises `NoController`."""
    found = endpoint.find()
    if found is None:
        if sys.stderr.isatty():
            click.echo("Starting the controller …", err=True)
        with working("Starting the controller"):
            found = endpoint.ensure()
    return Client(found)
