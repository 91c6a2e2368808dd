"""Compute Engine over HTTP on this computer: held to Google's own description of its API, with machines that run.

    with FakeGce(tmp_path / "gce", hidden=home) as gce:            # machines run their startup script: real agents
        (home / "config.yaml").write_text(gce.config)              # `gcp:` with its endpoint, project and regions
        with controller_on(home, environ=gce.environ) as one:      # the daemon, in a process of its own
            ...
            gce.faults.capacity["us-central1-a"] = 0               # from now on
            gce.interrupt(gce.living()[0].id)                      # as Google does it: with 30 s
            assert not gce.living()

Every request and every answer is checked against the discovery document of compute v1: names, types, what is required,
enumerated values; so is what is asked of Pub/Sub and of Cloud Billing, which are beside it. `FakeGce()` without a
folder has no machines: instances run and end as soon as they are told to.
"""

from fake_gce.faults import Faults
from fake_gce.server import FakeGce
from ledger import Bought

__all__ = ["Bought", "FakeGce", "Faults"]
