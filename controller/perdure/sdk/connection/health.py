"""Whether a controller answers at an endpoint, and whether it accepts the endpoint's token."""

from __future__ import annotations

import contextlib
import http.client

from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.transport import connect


def is_healthy(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether a healthy controller answers at the endpoint. Raises `WrongCertificate`."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/healthz")
            return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def is_answering(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether a controller answers at the endpoint, healthy or not. Raises `WrongCertificate`."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/healthz")
            return link.getresponse().status in (200, 503)
    except (OSError, http.client.HTTPException):
        return False


def is_authorized(endpoint: Endpoint, *, timeout_s: float = 2.0) -> bool:
    """Whether the controller at the endpoint accepts its token."""
    try:
        with contextlib.closing(connect(endpoint, timeout_s=timeout_s)) as link:
            link.request("GET", "/api/v1/controller", headers={"Authorization": f"Bearer {endpoint.token}"})
            return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
