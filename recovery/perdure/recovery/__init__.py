"""Decides what to do next with a job, as pure functions of values and `now`.

No I/O, no clock, no randomness: the controller and the simulator run the same code.

Reading order:

1. `statuses`, `reasons`: the states of a job, and why it is in them.
2. `market/`: what clouds offer, and what is known of each offer's availability.
3. `job`: the values that a decision is made of.
4. `events`, `actions`: what comes in, and what goes out.
5. `policies/`: where to try next.
6. `observe`, `rules/`, `step`: how an event changes a job, and what follows from it.
7. `directive`: what an attempt's nodes shall do. `heartbeat_interval`: how often nodes report.
8. `simulate/`: the same decisions, replayed on recorded spot markets.
"""
