"""EC2 over HTTP on this computer: moto with additions, and machines that really run.

    with FakeEc2(tmp_path / "ec2", hidden=home) as ec2:            # machines run their user data: real agents
        (home / "config.yaml").write_text(ec2.config)              # `aws:` with its endpoint and regions
        with controller_on(home, environ=ec2.environ) as one:      # the daemon, in a process of its own
            ...
            ec2.faults.capacity["us-east-1a"] = 0                  # from now on
            ec2.interrupt(ec2.living()[0].id, notice_s=5)
            assert not ec2.living()

It runs in the test's process, so machines survive a daemon's death. `FakeEc2()` without a folder starts no processes:
instances run and end at once, which is enough for a `Cloud`. moto's state is global, so only one may exist at a time.
"""

from support.fakes.ec2.faults import Faults
from support.fakes.ec2.server import FakeEc2
from support.fakes.purchases import Purchase

__all__ = ["FakeEc2", "Faults", "Purchase"]
