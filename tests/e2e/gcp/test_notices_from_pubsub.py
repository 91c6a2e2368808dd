"""A controller that reads Pub/Sub: what is there is heard, and acknowledged."""

from __future__ import annotations

import json
from pathlib import Path

from controllers import running_controller
from fake_gce import FakeGce

OTHERS = {
    "logName": "projects/acme/logs/cloudaudit.googleapis.com%2Fsystem_event",
    "protoPayload": {
        "methodName": "compute.instances.preempted",
        "resourceName": "projects/acme/zones/us-central1-a/instances/of-others",
    },
}


def test_what_is_in_the_subscription_is_heard(tmp_path: Path) -> None:
    with FakeGce() as gce:
        url = gce.subscription("holdfast")
        name = url.partition("/v1/")[2]
        gce.settings = {"notice_queues": [url]}
        (tmp_path / "config.yaml").write_text(gce.config)
        for text in ("nonsense", json.dumps(OTHERS)):
            gce.pubsub.send(name, text.encode())
        with running_controller(tmp_path, environ=gce.environ) as controller:
            controller.until(lambda: not gce.pubsub.left(name), "all is acknowledged")
        told = (tmp_path / "controller.log").read_text()
        assert told.count("notices.malformed") == 1
        assert "notices.failed" not in told
