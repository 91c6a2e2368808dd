"""One job on a real account, that loses two machines: `HOLDFAST_REAL_CLOUD=aws make test-cloud`. It costs money.

Set HOLDFAST_REAL_LISTEN to an address of this computer that EC2 machines can call on port 8443, and, as you like,
HOLDFAST_REAL_CAP_USD (1), HOLDFAST_REAL_REGION (us-east-1), and HOLDFAST_REAL_FIS_ROLE for an interruption by EC2.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import real_aws
from controllers import running_controller

# Before the tests' own surroundings hide it.
ENVIRON = dict(os.environ)
PATIENCE_S = 900.0

pytestmark = pytest.mark.skipif(real_aws.WANTED not in ENVIRON, reason=f"needs {real_aws.WANTED}, and costs money")


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_job_that_loses_two_machines_loses_nothing(tmp_path: Path) -> None:
    account = allowed()
    (tmp_path / "config.yaml").write_text(account.config)
    try:
        with real_aws.Cap(account) as cap, running_controller(tmp_path) as controller:
            shown = real_aws.wander(controller, account, cap, patience_s=PATIENCE_S)
        print(f"it cost ${shown['cost_usd']:.4f}, and at most ${cap.spent_usd():.4f} on demand")
    finally:
        real_aws.empty(account)


def allowed() -> real_aws.Account:
    problem = ""
    try:
        return real_aws.Account.of(ENVIRON)
    except real_aws.NotSetUp as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)
