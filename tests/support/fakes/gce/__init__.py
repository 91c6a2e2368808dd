"""Compute Engine over HTTP on this computer, checked against Google's API description, with machines that really run.

    with FakeGce(tmp_path / "gce", hidden=home) as gce:            # machines run their startup script: real agents
        (home / "config.yaml").write_text(gce.config)              # `gcp:` with its endpoint, project and regions
        with controller_on(home, environ=gce.environ) as one:      # the daemon, in a process of its own
            ...
            gce.faults.capacity["us-central1-a"] = 0               # from now on
            gce.interrupt(gce.living()[0].id)                      # as Google does it: with 30 s
            assert not gce.living()

Every request and response is checked against the discovery document of compute v1: names, types, required fields,
enumerated values; those of Pub/Sub and Cloud Billing against theirs. `FakeGce()` without a folder starts no processes:
instances run and end at once.
"""

from support.fakes.gce.faults import Faults
from support.fakes.gce.server import FakeGce
from support.fakes.purchases import Purchase

__all__ = ["FakeGce", "Faults", "Purchase"]
