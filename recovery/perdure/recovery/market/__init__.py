"""The market: what clouds offer, how available each offer is, and which offers fit a task.

Reading order:

1. `offers`: an offer, its market (spot or on-demand) and its key.
2. `requirements`, `fit`: what a task requires of a machine, and which offers fit.
3. `survival`, `history`: how long an offer will stay available, from its own record.
4. `unavailable`: an offer to avoid. `cooldown`: for how long. `unavailability_index`: all of them, without
   duplicates.
5. `view`: all of that at one moment.
"""
