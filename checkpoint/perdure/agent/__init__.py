"""The node agent: supervises the user's process on one machine. Standard library only, Python 3.9 and newer.

What it says to the controller and hears from it is docs/agent-protocol.md. Read in this order: `supervisor` (the node's
own state machine), `stages` and `runner` (how a script runs), `channel` and `logs` (how the controller learns of it).
"""

VERSION = "0.1.0"
