"""Where to try next: pure functions of a task, the market and `now`, selected by `job_recovery.strategy`.

Reading order:

1. `decisions`: what a policy returns, and the protocol of a policy. `strategies`: those by name.
2. `offer_choice`: how every policy picks an offer.
3. The simple policies: `cheapest`, `failover`, `eager_next_region`, `spread`.
4. The policies that compare costs and move running tasks: `cost_model`, `better_offer`, `value`, `deadline`.
5. `unnamed_strategy`: the strategy of a task that names none. `ablation`: policies without one part, to measure it.
"""
