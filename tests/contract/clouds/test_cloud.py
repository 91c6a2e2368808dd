"""Perdure's own clouds fulfil the contract of `Cloud`."""

from __future__ import annotations

from perdure.controller.clouds.contract_suite import CloudContract


class TestCloud(CloudContract):
    """The fixture `bench` of conftest.py supplies each cloud in turn."""
