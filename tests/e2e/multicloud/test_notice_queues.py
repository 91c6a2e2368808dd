"""A controller reads the notice queues of Google and Azure: it handles every message and leaves none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.fakes import azurite
from support.fakes.azure import FakeAzure
from support.fakes.gce import FakeGce
from support.helpers.controllers import running_controller

OF_GOOGLE = {
    "logName": "projects/acme/logs/cloudaudit.googleapis.com%2Fsystem_event",
    "protoPayload": {
        "methodName": "compute.instances.preempted",
        "resourceName": "projects/acme/zones/us-central1-a/instances/of-others",
    },
}
OF_AZURE = {
    "type": "Microsoft.ResourceNotifications.HealthResources.ResourceAnnotated",
    "data": {
        "resourceInfo": {
            "properties": {
                "targetResourceId": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/it",
                "annotationName": "VirtualMachinePreempted",
            }
        }
    },
}


def test_notice_queues__are_read_and_emptied(tmp_path: Path) -> None:
    if why := azurite.problem():
        pytest.skip(why)
    with FakeGce() as gce, FakeAzure() as azure, azure.queues(tmp_path / "queues") as queues:
        url = gce.subscription("perdure")
        name = url.partition("/v1/")[2]
        gce.settings = {"interruption_queues": [url]}
        azure.settings = {"interruption_queues": [queues.make("perdure")]}
        (tmp_path / "config.yaml").write_text(gce.config + azure.config)
        for google_says, azure_says in (("nonsense",) * 2, (json.dumps(OF_GOOGLE), json.dumps(OF_AZURE))):
            gce.pubsub.send(name, google_says.encode())
            queues.send("perdure", azure_says)
        with running_controller(tmp_path, environ={**gce.environ, **azure.environ}) as controller:
            controller.until(lambda: not gce.pubsub.count(name) and not queues.count("perdure"), "nothing is left")
        reported = (tmp_path / "controller.log").read_text()
        assert reported.count("notices.malformed") == 2
        assert "notices.failed" not in reported
