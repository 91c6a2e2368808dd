"""Tab completion: the script for a shell, and what is suggested."""
