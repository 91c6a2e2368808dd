"""Azure over HTTPS on this computer: Resource Manager for machines, sign-in, and machines that really run.

    with FakeAzure(tmp_path / "azure", hidden=home) as azure:      # machines run their custom data: real agents
        (home / "config.yaml").write_text(azure.config)            # `azure:` with its endpoint, regions and authority
        with controller_on(home, environ=azure.environ) as one:    # the daemon, in a process of its own
            ...
            azure.faults.capacity["eastus-1"] = 0                  # from now on
            azure.evict(azure.living()[0].id, notice_s=30)
            assert not azure.living()

`with azure.queues(folder) as queues:` adds a storage account with queues, served by azurite.

It runs in the test's process, so machines survive a daemon's death. `FakeAzure()` without a folder starts no processes:
virtual machines run as soon as their creation completes, which is at once unless `faults` delays it.
"""

from support.fakes.azure.faults import Faults
from support.fakes.azure.server import FakeAzure
from support.fakes.purchases import Purchase

__all__ = ["FakeAzure", "Faults", "Purchase"]
