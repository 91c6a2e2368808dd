"""`resources.autostop`: what each form requests of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.controller.submit.cluster.autostop import AutostopRequest, parse_autostop
from perdure.sdk import Resources

Form = bool | int | str | dict[str, Any] | None

FORMS: list[tuple[Form, AutostopRequest | None]] = [
    (None, None),
    (True, AutostopRequest(300.0)),
    (False, None),
    (10, AutostopRequest(600.0)),
    (0, AutostopRequest(0.0)),
    (-1, AutostopRequest(None)),
    ("10", AutostopRequest(600.0)),
    ("90s", AutostopRequest(90.0)),
    ("10m", AutostopRequest(600.0)),
    ("2 H", AutostopRequest(7200.0)),
    ("1d", AutostopRequest(86_400.0)),
    ("1w", AutostopRequest(604_800.0)),
    ({"down": True}, AutostopRequest(300.0, down=True)),
    ({"idle_minutes": 1, "wait_for": "none"}, AutostopRequest(60.0, wait_for="none")),
    ({"idle_minutes": -1}, AutostopRequest(None)),
    ({"idle_minutes": 1, "idle_below": 5}, AutostopRequest(60.0, below=0.05)),
]


@pytest.mark.parametrize(("value", "request_of_it"), FORMS, ids=str)
def test_form__says_when_the_cluster_stops(value: Form, request_of_it: AutostopRequest | None) -> None:
    assert parse_autostop(Resources(autostop=value).autostop) == request_of_it
