"""The `azure:` section."""

from __future__ import annotations

import pytest

from perdure.controller.clouds.azure.settings import AzureSettings
from perdure.controller.clouds.section import SettingsError


def test_everything_has_a_default() -> None:
    assert AzureSettings.from_mapping(None) == AzureSettings() == AzureSettings.from_mapping({})


def test_what_it_takes() -> None:
    subnet = "/subscriptions/s/resourceGroups/own/providers/Microsoft.Network/virtualNetworks/v/subnets/s"
    settings = AzureSettings.from_mapping({"regions": ["eastus", "westus3"], "subnets": {"eastus": subnet}})
    assert settings.regions == ("eastus", "westus3")
    assert not settings.wants_public_ip("eastus"), "the user's own subnet has a way out of its own"
    assert settings.wants_public_ip("westus3")
    assert not AzureSettings.from_mapping({"public_ips": False}).wants_public_ip("westus3")
    queue = "https://account.queue.core.windows.net/perdure"
    assert AzureSettings.from_mapping({"notice_queues": [queue, queue]}).notice_queues == (queue,)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"region": "eastus"}, r"azure\.region"),
        ({"regions": "eastus"}, r"azure\.regions"),
        ({"regions": ["East US"]}, r"azure\.regions"),
        ({"subnets": {"eastus": "mine"}}, r"azure\.subnets\.eastus"),
        ({"public_ips": "no"}, r"azure\.public_ips"),
        ({"endpoint_url": "here"}, r"azure\.endpoint_url"),
        ({"notice_queues": "https://account.queue.core.windows.net/perdure"}, r"azure\.notice_queues"),
        ({"notice_queues": ["http://account.queue.core.windows.net/perdure"]}, r"azure\.notice_queues"),
        ({"notice_queues": ["https://account.queue.core.windows.net"]}, r"azure\.notice_queues"),
        ([], "azure"),
    ],
)
def test_what_is_wrong_is_named(section: object, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        AzureSettings.from_mapping(section)
