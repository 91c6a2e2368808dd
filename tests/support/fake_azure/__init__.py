"""Azure over HTTPS on this computer: Resource Manager, as far as machines go, a sign-in, and machines that really run.

    with FakeAzure(tmp_path / "azure", hidden=home) as azure:      # machines run their custom data: real agents
        (home / "config.yaml").write_text(azure.config)            # `azure:` with its endpoint, regions and authority
        with controller_on(home, environ=azure.environ) as one:    # the daemon, in a process of its own
            ...
            azure.faults.capacity["eastus-1"] = 0                  # from now on
            azure.evict(azure.living()[0].id, notice_s=30)
            assert not azure.living()

`with azure.queues(folder) as queues:` it has a storage account with queues besides, which are azurite's.

It lives in the test's process: a daemon may die and come back, the machines stay. `FakeAzure()` without a folder has no
machines: virtual machines run as soon as their creation is over, which is at once unless `faults` says otherwise.
"""

from fake_azure.faults import Faults
from fake_azure.server import FakeAzure
from ledger import Bought

__all__ = ["Bought", "FakeAzure", "Faults"]
