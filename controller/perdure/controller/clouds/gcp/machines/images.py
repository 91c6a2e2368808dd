"""Looks up images: public ones are in projects of Google's partners, to which everybody has access."""

from __future__ import annotations

from typing import Any

from perdure.controller.clouds.base import launch_rehearsal
from perdure.controller.clouds.gcp.machines import launch_request
from perdure.controller.clouds.gcp.sdk.connections import GcpConnections
from perdure.controller.clouds.gcp.settings import GcpSettings
from perdure.recovery.market.view import Offer

URL = "https://compute.googleapis.com"


def find_for(connections: GcpConnections, settings: GcpSettings, offer: Offer) -> Any:
    """`find` of the image that a machine of the offer would boot. Raises CloudRejected, too."""
    return find(connections, launch_request.image(launch_rehearsal.request_for(offer), settings))


def find(connections: GcpConnections, image: str) -> Any:
    """The resource of an image, or the newest one of a family. Raises what `GcpConnections.call` does.

    `image`: `projects/…/global/images/…` or `…/family/…`, perhaps as a URL.
    """
    _, _, name = image.rpartition("projects/")
    return connections.call("GET", URL, f"/compute/v1/projects/{name}")
