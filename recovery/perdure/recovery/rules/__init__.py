"""What follows from the state of a job: ordered rules over one task.

Reading order:

1. `table`: the rules in their order, and the loop that applies them.
2. The rules by subject: `succeed_or_cancel` (the task is over), `cleanup` (attempts on their way out), `machine_loss`
   (machines are lost), `failure` (a rank fails by itself), `limits` (of time and cost), `progress` (an attempt comes
   up), `migrate` (its replacement elsewhere), `next_attempt` (its buckets, its deadline, its place).
3. What rules share: `context` (what they read, and changes to a task), `attempt_end` (an attempt's wind-down and how it
   ended), `backoff` (the pause after failed launches).
4. `transitions`: every transition between states that the rules can make, from which the diagrams are drawn.
"""
