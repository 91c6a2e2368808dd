"""What a rank leaves in the background, such as a Ray worker, lives until every rank has ended, and no longer."""

from __future__ import annotations

import pytest

from support.helpers.clusters import Clusters

# Rank 1 ends at once and leaves a server; rank 0 uses it later than its grace period.
SCRIPT = """
if [ "$SKYPILOT_NODE_RANK" = 1 ]; then
  nohup sh -c 'while true; do date +%s%N > ~/alive; sleep 0.1; done' > /dev/null 2>&1 &
  echo left
else
  while [ ! -e ~/go ]; do sleep 0.1; done
  echo done
fi
"""
IS_ALIVE = 'a=$(cat ~/alive); sleep 0.5; [ "$a" = "$(cat ~/alive)" ] && echo still || echo alive'


@pytest.mark.slow
def test_background_process__lives_until_all_ranks_have_ended(sky: Clusters) -> None:
    sky.launch("ray", num_nodes=2)
    number = sky.exec("ray", SCRIPT, num_nodes=2)
    sky.controller.until(lambda: "(rank 1) left" in sky.log("ray", number), "the end of rank 1")
    probe = f"[ -e ~/alive ] && {{ {IS_ALIVE}; }} || echo none"
    seen = sky.output("ray", f"sleep 2.5; {probe}", num_nodes=2)
    assert "(rank 1) alive" in seen, "it outlives its own rank's `run`"
    assert sky.job("ray", number)["status"] == "RUNNING"
    sky.output("ray", "touch ~/go", num_nodes=2)
    assert sky.until("ray", number)["status"] == "SUCCEEDED"
    assert "(rank 1) still" in sky.output("ray", probe, num_nodes=2), "the next job finds nothing of it"
