"""What follows from the state of a job: ordered rules over one task.

Reading order:

1. `table`: the rules in their order, and the loop that applies them.
2. The rules by subject: `outcome` (the task is over), `cleanup` (attempts on their way out), `loss` (machines are
   lost), `failure` (a rank fails by itself), `progress` (an attempt comes up), `migrate` (its replacement elsewhere),
   `next_attempt` (its buckets, its deadline, its place).
3. What rules share: `context` (what they read, and changes to a task), `attempt_queries` (questions about one attempt,
   and its wind-down), `backoff` (the pause after failed launches).
4. `lifecycle`: every transition between states that the rules can make, from which the diagrams are drawn.
"""
