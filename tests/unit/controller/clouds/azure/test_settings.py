"""The `azure:` section."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.base.config_section import SectionError


def test_from_mapping__has_defaults() -> None:
    assert AzureSettings.from_mapping(None) == AzureSettings() == AzureSettings.from_mapping({})


def test_from_mapping__reads_every_field() -> None:
    subnet = "/subscriptions/s/resourceGroups/own/providers/Microsoft.Network/virtualNetworks/v/subnets/s"
    settings = AzureSettings.from_mapping({"regions": ["eastus", "westus3"], "subnets": {"eastus": subnet}})
    assert settings.regions == ("eastus", "westus3")
    assert not settings.wants_public_ip("eastus"), "the user's own subnet has its own route to the internet"
    assert settings.wants_public_ip("westus3")
    assert not AzureSettings.from_mapping({"public_ips": False}).wants_public_ip("westus3")
    queue = "https://account.queue.core.windows.net/perdure"
    assert AzureSettings.from_mapping({"interruption_queues": [queue, queue]}).interruption_queues == (queue,)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"region": "eastus"}, r"azure\.region"),
        ({"regions": "eastus"}, r"azure\.regions"),
        ({"regions": ["East US"]}, r"azure\.regions"),
        ({"subnets": {"eastus": "mine"}}, r"azure\.subnets\.eastus"),
        ({"public_ips": "no"}, r"azure\.public_ips"),
        ({"endpoint_url": "here"}, r"azure\.endpoint_url"),
        ({"interruption_queues": "https://account.queue.core.windows.net/perdure"}, r"azure\.interruption_queues"),
        ({"interruption_queues": ["http://account.queue.core.windows.net/perdure"]}, r"azure\.interruption_queues"),
        ({"interruption_queues": ["https://account.queue.core.windows.net"]}, r"azure\.interruption_queues"),
        ([], "azure"),
    ],
)
def test_from_mapping__names_an_invalid_field(section: object, field: str) -> None:
    with pytest.raises(SectionError, match=field):
        AzureSettings.from_mapping(section)
