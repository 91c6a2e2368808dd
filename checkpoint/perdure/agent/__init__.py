"""The node agent: supervises the user's process on one machine. Standard library only, Python 3.9 and newer.

docs/reference/agent-protocol.md describes what it exchanges with the controller. Reading order: `lifecycle.supervisor`
(the node's state machine), `workload` (how a script runs), `link` (the connection to the controller), `notices` (where
an interruption notice enters), `storage` (files, mounts, uploads).
"""

VERSION = "0.1.0"
