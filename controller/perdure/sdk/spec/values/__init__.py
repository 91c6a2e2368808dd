"""Parts of a task that several fields share: quantities, variables, and the names of clouds."""
