"""Bodies of requests: a value of another type is refused, not converted."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from perdure.controller.api.routes.clusters import ClusterJobBody
from perdure.controller.api.routes.jobs import CancelBody, LaunchBody, PlanBody, PreemptBody, RequestBody


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CancelBody, {"ids": [True]}),
        (CancelBody, {"ids": ["1"]}),
        (CancelBody, {"ids": [1.0]}),
        (CancelBody, {"all": "yes"}),
        (CancelBody, {"all": 1}),
        (CancelBody, {"ids": [1], "grace_s": True}),
        (PreemptBody, {"node": True}),
        (PreemptBody, {"notice_s": "5"}),
        (LaunchBody, {"tasks": [], "num_jobs": True}),
        (PlanBody, {"tasks": [], "forecast": 1}),
        (LaunchBody, {"tasks": [], "key": "k\x1f1"}),  # the key of the second job of a batch
        (LaunchBody, {"tasks": [], "key": "cluster\x1f1\x1f1"}),
        (ClusterJobBody, {"task": {}, "key": "k\x1fjob"}),
        (ClusterJobBody, {"task": {}, "key": ""}),
    ],
)
def test_body__with_another_type_is_refused(model: type[RequestBody], body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


def test_body__accepts_what_clients_send() -> None:
    assert CancelBody.model_validate({"ids": [1, 2], "grace_s": 5}).ids == [1, 2]
    assert PreemptBody.model_validate({"node": 1, "notice_s": None}).node == 1
    assert ClusterJobBody.model_validate({"task": {}, "key": "cluster/7/1 é"}).key == "cluster/7/1 é"
    assert LaunchBody.model_validate({"tasks": [{"run": "true"}], "num_jobs": 3, "name": None}).num_jobs == 3
