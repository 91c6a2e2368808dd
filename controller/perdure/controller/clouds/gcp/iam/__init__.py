"""The role of a hosted controller: the identity that has it, and what it must allow."""
