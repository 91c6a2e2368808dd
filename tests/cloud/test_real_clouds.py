"""One job on a real account that loses two machines: `PERDURE_REAL_CLOUD=aws make test-cloud`, or gcp, or azure.

It costs money. Set PERDURE_REAL_LISTEN to an address of this computer that the cloud's machines can reach on port 8443.
Optional: PERDURE_REAL_CAP_USD (1) and PERDURE_REAL_REGION (us-east-1, us-central1, eastus). Credentials are found as
the controller finds them.

AWS: PERDURE_REAL_FIS_ROLE for an interruption by EC2. Google: GOOGLE_CLOUD_PROJECT, if the credentials name none.
Azure: AZURE_SUBSCRIPTION_ID, and AZURE_STORAGE_ACCOUNT for a container; the new resource group test-of-perdure-REGION
stays, and costs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.helpers.controllers import running_controller
from support.worlds import real_account

# Before the tests' own surroundings hide it.
ENVIRON = dict(os.environ)

pytestmark = pytest.mark.skipif(
    real_account.WANTED not in ENVIRON, reason=f"needs {real_account.WANTED}, and costs money"
)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_job__loses_nothing_with_two_machines_lost(tmp_path: Path) -> None:
    account = allowed()
    (tmp_path / "config.yaml").write_text(account.config)
    try:
        with real_account.Cap(account) as cap, running_controller(tmp_path) as controller:
            shown = real_account.run_migrating_job(controller, account, cap, timeout_s=account.kind.timeout_s)
        print(f"it cost ${shown['cost_usd']:.4f}, and at most ${cap.spent_usd():.4f} on demand")
    finally:
        account.empty()


def allowed() -> real_account.Account:
    problem = ""
    try:
        return real_account.Account.of(ENVIRON)
    except real_account.NotSetUp as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)
