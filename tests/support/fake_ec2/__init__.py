"""EC2 over HTTP on this computer: moto's, with what it lacks, and machines that really run.

    with FakeEc2(tmp_path / "ec2", hidden=home) as ec2:            # machines run their user data: real agents
        (home / "config.yaml").write_text(ec2.config)              # `aws:` with its endpoint and regions
        with controller_on(home, environ=ec2.environ) as one:      # the daemon, in a process of its own
            ...
            ec2.faults.capacity["us-east-1a"] = 0                  # from now on
            ec2.interrupt(ec2.living()[0].id, notice_s=5)
            assert not ec2.living()

It lives in the test's process: a daemon may die and come back, the machines stay. `FakeEc2()` without a folder has no
machines: instances run as soon as they are bought and end as soon as they are told to, which is enough for a `Cloud`.
moto keeps its state per process, so there may be one at a time.
"""

from fake_ec2.faults import Faults
from fake_ec2.server import FakeEc2
from ledger import Bought

__all__ = ["Bought", "FakeEc2", "Faults"]
