"""Where to try next: pure functions of a task, the market and `now`, selected by `job_recovery.strategy`.

Reading order:

1. `decisions`: what a policy returns, and the protocol of a policy. `registry`: the strategies by name.
2. `placement`: how every policy picks an offer, or waits.
3. `strategies`: the simple ones (`cheapest`, `failover`, `eager_next_region`, `spread`, `granted_slot`), and those that
   compare costs and move running tasks (`value`, `deadline`). `cost_model`, `better_offer`: what the latter share.
4. `unnamed_strategy`: the strategy of a task that names none. `ablation`: policies without one part, to measure it.
"""
